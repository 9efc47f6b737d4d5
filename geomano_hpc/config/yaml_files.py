"""Recipes, studies and profiles are YAML files, found and read in one way: by name or by path, strictly."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from geomano_hpc.config.explain import closest
from geomano_hpc.config.yaml_text import read_mapping
from geomano_hpc.errors import ConfigError


@dataclass(frozen=True)
class YamlFiles:
    """The files of one kind: those that are shipped, those of the user's own folder, and any other by its path."""

    kind: str  # in the words of an error, such as "recipe"
    shipped: Traversable
    own_folder: Callable[[], Path] | None = None  # asked each time: it depends on the environment

    def names(self) -> list[str]:
        own = [] if self.own_folder is None else self.own_folder().glob("*.yaml")
        files = [entry.name for entry in (*self.shipped.iterdir(), *own)]
        return sorted({name.removesuffix(".yaml") for name in files if name.endswith(".yaml")})

    def read(self, name_or_path: str, also: "YamlFiles | None" = None) -> tuple[dict[str, Any], str]:
        """The mapping in the file and how to name the file in an error.

        A name of the user's own comes before a shipped one, and both before a file of that name: write ./NAME for it.
        `also` is another kind that the caller takes by name, for the error.
        """
        file, source = self._find(name_or_path)
        if file is None:
            kinds = [self] if also is None else [self, also]
            known = [name for kind in kinds for name in kind.names()]
            folder = "" if self.own_folder is None else f", also in {self.own_folder()}"
            raise ConfigError(
                f"no {', '.join(kind.kind for kind in kinds)} or file {name_or_path!r}{closest(name_or_path, known)}; "
                f"known: {', '.join(known)}; one of your own is a YAML file{folder}"
            )
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{source}: cannot be read as text ({error})") from None
        return read_mapping(text, source), source

    def _find(self, name_or_path: str) -> tuple[Traversable | None, str]:
        if "/" not in name_or_path:
            own = None if self.own_folder is None else self.own_folder() / f"{name_or_path}.yaml"
            if own is not None and own.is_file():
                return own, str(own)
            shipped = self.shipped / f"{name_or_path}.yaml"
            if shipped.is_file():
                return shipped, f"{self.kind} {name_or_path}"
        path = Path(name_or_path)
        return (path if path.is_file() else None), name_or_path
