"""The models that a recipe may name: the base of their configurations, and where a model is found by its name.

A model is one file, geomano_hpc/models/NAME.py, with its configuration, its torch module and its registration. So the
names are known by listing files, and torch is loaded only when a model is asked for.
"""

import functools
import importlib
import pkgutil
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeGuard, TypeVar

from pydantic import ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

from geomano_hpc.config.by_name import is_reference
from geomano_hpc.config.explain import EXPLAINED, closest, explain, validated
from geomano_hpc.config.strict import Strict
from geomano_hpc.errors import ConfigError

if TYPE_CHECKING:
    from geomano_hpc.config.tree import Recipe

DEFAULT_MODEL = "geomano"
_PACKAGE = "geomano_hpc.models"

Grid = tuple[int, int]
Model = TypeVar("Model", bound=type)


class ModelConfig(Strict):
    """The keys of one model, and what the trainer asks about it. Most models override none of the methods.

    A subclass gives `name` its value: `name: Literal["fno"] = "fno"`.
    """

    name: str

    # Whether operations can be counted on shapes alone; a model that looks at values is computed for it.
    counted_by_shapes: ClassVar[bool] = True

    def build(self, in_channels: int, out_channels: int, grid: Grid | None = None) -> Any:
        """The torch module of this configuration, [B, H, W, in_channels] -> [B, H, W, out_channels]."""
        return find_model(self.name)(in_channels, out_channels, grid=grid, config=self)

    def backend(self) -> str | None:
        """The backend of the scan that the model asks for; None for a model without a scan."""
        return None

    def try_out(
        self,
        in_channels: int,
        out_channels: int,
        grid: Grid,
        device: Any,
        recipe: "Recipe | None" = None,
        world_size: int = 1,
    ) -> None:
        """Raise a ConfigError if a training by this recipe could not use the model: asked before anything is written.
        The models of this package are tested, and need it not."""

    def check_grid(self, grid: Grid) -> None:
        """Raise a ConfigError for data on a grid (H, W) that the model does not take."""

    def tied_to_grid(self) -> str:
        """What ties the parameters to the grid of the training, in words; empty for a model of any grid."""
        return ""

    def check_recipe(self, recipe: "Recipe") -> None:
        """Raise a ValueError for a recipe whose other parts do not go with this model."""

    @classmethod
    def chosen(cls, config: Self | None, options: Mapping[str, Any]) -> Self:
        """The configuration that a model's constructor was given: as one, or as keywords."""
        source = f"model {cls.model_fields['name'].default}"
        if config is None:
            return validated(cls, dict(options), source)
        if options:
            raise ConfigError(f"{source}: give config, or keys such as {next(iter(options))}, not both")
        if not isinstance(config, cls):
            raise ConfigError(f"{source}: config is a {cls.__name__}, not a {type(config).__name__}")
        return config


class RecordedModel(ModelConfig):
    """The model of a finished recipe, as a record: every key as it was written, without the model behind it."""

    model_config = ConfigDict(extra="allow")


_REGISTERED: dict[str, Any] = {}


def register_model(model: Model) -> Model:
    """Class decorator: makes a model known by the name of its `Config`, a ModelConfig.

    Its constructor is called as Model(in_channels, out_channels, grid=(H, W), config=Config).
    """
    config = getattr(model, "Config", None)
    if not _is_config(config):
        raise ConfigError(f"{model.__module__}:{model.__qualname__}: has no Config that is a ModelConfig")
    name = config.model_fields["name"].default
    if not isinstance(name, str):
        raise ConfigError(f"{config.__module__}:{config.__qualname__}: its name has no default: write name: str = ...")
    other = _REGISTERED.setdefault(name, model)
    if (other.__module__, other.__qualname__) != (model.__module__, model.__qualname__):
        raise ConfigError(
            f"{model.__module__}:{model.__qualname__}: the name {name} is taken by {other.__module__}; choose another"
        )
    _REGISTERED[name] = model
    return model


def model_names() -> list[str]:
    """Names that `model.name` may have, beside package.module:Class. No model is imported for it."""
    return sorted({*_shipped(), *_installed(tuple(sys.path))})


def find_model(name: str) -> Any:
    """The model class of this name, shipped or of an installed package."""
    by = [str(_package(entry)) for entry in _installed(tuple(sys.path)).get(name, ())]
    if len(by) + (name in _shipped()) > 1:
        others = ["geomano_hpc", *by] if name in _shipped() else by
        which = "uninstall one, or name the class as package.module:Class"
        raise ConfigError(f"model.name: {name} is the name of models of {' and of '.join(others)}; {which}")
    if name in _shipped():
        importlib.import_module(f"{_PACKAGE}.{name}")
        assert name in _REGISTERED, f"{_PACKAGE}.{name} registers no model of this name"
    if name in _REGISTERED:
        return _REGISTERED[name]
    return load_installed(name)


def load_installed(name: str) -> Any:
    """What the entry point `name` of an installed package stands for; it is imported only when it is asked for."""
    entries = _installed(tuple(sys.path)).get(name)
    if not entries:
        known = model_names()
        own = "or package.module:Class for one of your own"
        raise ConfigError(
            f"model.name: {name!r} is not known{closest(name, known)}; choose one of {', '.join(known)}, {own}"
        )
    try:
        return entries[0].load()
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(
            f"model.name: {name}, which {_package(entries[0])} registers as {entries[0].value}, cannot be imported: "
            f"{reason}"
        ) from error


def config_of_model(name: str) -> type[ModelConfig]:
    """The keys of the model of this name. A class whose `Config` is no ModelConfig has one key beside it, `options`."""
    model: Any = None if is_reference(name) else find_model(name)
    config = getattr(model, "Config", None)
    if not _is_config(config):
        own: type[ModelConfig] = importlib.import_module(f"{_PACKAGE}.common.own_class").OwnModelConfig
        return own
    register_model(model)
    if _REGISTERED.get(name) is not model:
        named = config.model_fields["name"].default
        raise ConfigError(f"model.name: {name} is registered for a model whose Config has the name {named!r}")
    return config


def model_section(content: Any, recorded: bool = False) -> ModelConfig:
    """The section `model` of a recipe, by the configuration of the model that it names."""
    if isinstance(content, ModelConfig):
        return content
    if not isinstance(content, dict):
        raise ValueError("expected a group of keys, such as {name: geomano, depth: 8}")
    kind: type[ModelConfig] = RecordedModel
    try:
        if not recorded:
            kind = config_of_model(str(content.get("name", DEFAULT_MODEL)))
        return kind.model_validate(content)
    except ValidationError as error:
        raise _explained(explain(error, kind, "model")) from None
    except ConfigError as error:
        raise _explained(str(error)) from None


def default_model() -> ModelConfig:
    return model_section({"name": DEFAULT_MODEL})


def _is_config(config: Any) -> TypeGuard[type[ModelConfig]]:
    return isinstance(config, type) and issubclass(config, ModelConfig)


def _explained(text: str) -> PydanticCustomError:
    return PydanticCustomError(EXPLAINED, "{text}", {"text": text})


def _shipped() -> list[str]:
    """The files of the package, which is not imported for it."""
    spec = find_spec(_PACKAGE)
    assert spec is not None
    return [entry.name for entry in pkgutil.iter_modules(spec.submodule_search_locations) if not entry.ispkg]


@functools.cache
def _installed(_path: tuple[str, ...]) -> dict[str, list[EntryPoint]]:
    """Entry points by name, of the packages on this path."""
    found: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=_PACKAGE):
        found.setdefault(entry.name, []).append(entry)
    return found


def _package(entry: EntryPoint) -> str:
    return entry.value if entry.dist is None else f"the package {entry.dist.name}"
