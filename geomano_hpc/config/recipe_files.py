"""Read recipes (shipped or the user's own) and apply overrides."""

from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from geomano_hpc.config.by_store import resolved
from geomano_hpc.config.explain import validated
from geomano_hpc.config.tree import RECORDED, Recipe
from geomano_hpc.config.yaml_files import YamlFiles
from geomano_hpc.config.yaml_text import read_yaml, write_yaml
from geomano_hpc.errors import ConfigError

RECIPES = YamlFiles("recipe", resources.files("geomano_hpc.config") / "recipes")
_SECTIONS = ("data", "model", "loss", "training", "rollout", "compute")


def recipe_names() -> list[str]:
    return RECIPES.names()


def load_recipe(recipe: str | Path | Recipe, changes: Mapping[str, Any] | Iterable[str] = ()) -> Recipe:
    """A recipe with changes, checked: an unknown key or a wrong value is a ConfigError that names the closest one.

    Args:
        recipe: the name of a shipped recipe, a YAML file, or a Recipe
        changes: a mapping such as {"model.depth": 4}, or words of the command line such as "model.depth=4"

    Examples:
        >>> import geomano_hpc as gm
        >>> recipe = gm.load_recipe("darcy", {"model.depth": 4, "training.epochs": 50})
        >>> recipe.model.depth, recipe.model.embedding, recipe.training.lr
        (4, 64, 0.0003)
    """
    if isinstance(recipe, Recipe):
        content, source = recipe.model_dump(mode="json"), f"recipe {recipe.name}"
    else:
        content, source = RECIPES.read(str(recipe))
    if isinstance(changes, str):
        raise ConfigError(f"changes: {changes!r} is one text; write {{'model.depth': 4}}, or a list of such texts")
    if not isinstance(changes, Mapping):
        changes = overrides_once(changes)
    apply_changes(content, changes)
    return recipe_from_mapping(content, source)


def overrides_once(words: Iterable[str]) -> dict[str, Any]:
    """Words of the command line, each key once."""
    changes: dict[str, Any] = {}
    for path, value in map(split_override, words):
        if changes.setdefault(path, value) != value:
            raise ConfigError(f"--set {path}: is given twice, as {changes[path]} and as {value}; once is meant")
    return changes


def split_override(text: str) -> tuple[str, Any]:
    """`model.depth=4` -> the key's path and its value."""
    path, separator, value = text.partition("=")
    if not separator or not path:
        raise ConfigError(f"--set {text!r}: write it as key=value, such as model.depth=4")
    return path.strip(), parse_value(value.strip())


def recipe_from_mapping(content: Mapping[str, Any], source: str, recorded: bool = False) -> Recipe:
    """`recorded`: the resolved recipe of a run folder. Its model is a RecordedModel, which needs neither torch nor the
    package that the model is of; it tells what was trained and cannot be trained."""
    return validated(Recipe, resolved(content), source, context={RECORDED: recorded})


def apply_changes(content: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Set keys by their paths. Another `model.name` starts from that model's own defaults, since the keys of one model
    mean nothing to another; the other changes of the model follow, in whatever order they were written. Another
    `data.store` is taken as it is, and never made."""
    changes = dict(_by_key(changes))
    name, model = changes.get("model.name"), content.get("model", {})
    if name is not None and isinstance(model, dict) and name != model.get("name", "geomano"):
        content["model"] = {"name": name}
    data = content.get("data")
    said = any(path.startswith("data.generate") for path in changes)
    if isinstance(data, dict) and not said and str(changes.get("data.store")) not in ("None", str(data.get("store"))):
        data["generate"] = None  # how the recipe makes its own store says nothing of another one
    for path, value in changes.items():
        set_by_path(content, path, value)


def _by_key(changes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """`{"training": {"epochs": 2}}` changes one key of the section and leaves the others as they are."""
    for path, value in changes.items():
        if not isinstance(path, str):
            raise ConfigError(f"changes: {path!r} is no key; write it as text, such as 'model.depth'")
        if path in _SECTIONS and isinstance(value, Mapping):
            yield from ((f"{path}.{key}", inner) for key, inner in value.items())
        else:
            yield path, value


def set_by_path(content: dict[str, Any], path: str, value: Any) -> None:
    """Set `model.depth` in a nested mapping. Whether the key exists is for the validation to say."""
    *parents, leaf = path.split(".")
    node = content
    for parent in parents:
        child = node.setdefault(parent, {})
        if not isinstance(child, dict):
            raise ConfigError(f"{path}: {parent} is a value, not a group of keys")
        node = child
    node[leaf] = value


def to_yaml(recipe: Recipe) -> str:
    return write_yaml(recipe.model_dump(mode="json"))


def parse_value(text: str) -> Any:
    """Scalars stay text, which the typed tree converts: so 0011 remains a mask. Lists, mappings and null are YAML."""
    if text == "null":
        return None
    if text[:1] in ("[", "{"):
        return read_yaml(text, f"--set value {text!r}")
    return text
