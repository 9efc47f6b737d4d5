"""A model of the user's: any torch module with channels last, named `package.module:Class` or by an entry point.

It is constructed as Class(in_channels=..., out_channels=..., **options), with grid=(H, W) if it takes that. What can be
wrong with it is found before anything is written: the class and its options when the recipe is read, the rest by a
first sample (`try_out`). Axes: B batch, H x W grid, C channels.
"""

import inspect
from typing import Any, ClassVar, get_type_hints

import torch
from pydantic import Field, TypeAdapter, ValidationError, ValidationInfo, field_validator
from safetensors.torch import save
from torch import nn

from geomano_hpc.config import ModelConfig, Recipe
from geomano_hpc.config.by_name import is_reference, resolve
from geomano_hpc.config.choices import as_numbers
from geomano_hpc.config.explain import closest
from geomano_hpc.config.models import Grid, load_installed
from geomano_hpc.errors import ConfigError
from geomano_hpc.models.common.build import build_model

_TOLD_BY_THE_DATA = ("in_channels", "out_channels", "grid")


class OwnModelConfig(ModelConfig):
    """A class of one's own, with the keywords of its constructor as `options`."""

    counted_by_shapes: ClassVar[bool] = False  # it may look at values

    name: str
    options: dict[str, Any] = Field(default_factory=dict, description="keywords of the constructor")

    @field_validator("options")
    @classmethod
    def _fit_the_constructor(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if "name" not in info.data:
            return options  # the name is wrong, which is said already
        fitted = _Constructor(info.data["name"]).fit(options)
        return {key: adapter.dump_python(value, mode="json") for key, (value, adapter) in fitted.items()}

    def build(self, in_channels: int, out_channels: int, grid: Grid | None = None) -> nn.Module:
        constructor = _Constructor(self.name)
        keywords: dict[str, Any] = {"in_channels": in_channels, "out_channels": out_channels}
        if "grid" in constructor.parameters:
            keywords["grid"] = grid
        keywords |= {key: value for key, (value, _) in constructor.fit(self.options).items()}
        try:
            return constructor.model(**keywords)
        except Exception as error:
            given = ", ".join(f"{key}={value!r}" for key, value in keywords.items())
            raise ConfigError(f"model {self.name}: {_said(error)}, when constructed with {given}") from error

    def try_out(
        self,
        in_channels: int,
        out_channels: int,
        grid: Grid,
        device: torch.device,
        recipe: Recipe | None = None,
        world_size: int = 1,
    ) -> None:
        compute = None if recipe is None else recipe.compute
        model = build_model(self, in_channels, out_channels, grid, compute).to(device).eval()
        frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
        if frozen and recipe is not None and recipe.training.zero:
            raise ConfigError(
                f"model {self.name}: its parameters {', '.join(frozen)} are not trained, and ZeRO parts only those "
                "that are: set training.zero to 0, or make them buffers"
            )
        imaginary = [name for name, parameter in model.named_parameters() if parameter.is_complex()]
        if imaginary:
            raise ConfigError(
                f"model {self.name}: its parameters {', '.join(imaginary)} are complex, which not every engine trains: "
                "keep them as pairs of real numbers and use torch.view_as_complex in forward"
            )
        try:
            save(model.state_dict())
        except Exception as error:
            reason = _said(error).partition(". ")[0]  # what follows is advice for another file format
            raise ConfigError(f"model {self.name}: its state cannot be saved: {reason}") from error
        given, expected = [2, *grid, in_channels], [2, *grid, out_channels]
        try:
            found = model(torch.zeros(given, device=device))
        except Exception as error:
            raise ConfigError(f"model {self.name}: {_said(error)}, when given zeros of shape {given}") from error
        shape = list(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        if shape != expected:
            raise ConfigError(
                f"model {self.name}: returns {shape} for {given}, expected {expected}: [batch, height, width, channels]"
            )
        if recipe is not None:
            self._check_gradients(model, found, for_ddp=recipe.training.engine == "torch" and world_size > 1)

    def _check_gradients(self, model: nn.Module, found: torch.Tensor, for_ddp: bool) -> None:
        trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        if not trained:
            raise ConfigError(f"model {self.name}: has no parameter that is trained")
        if not found.requires_grad:
            raise ConfigError(f"model {self.name}: what it returns has no gradient; is it detached in forward?")
        if not for_ddp:
            return
        found.float().square().sum().backward()
        unused = [name for name, parameter in trained.items() if parameter.grad is None]
        if unused:
            raise ConfigError(
                f"model {self.name}: its parameters {', '.join(unused)} have no part in what it returns, which "
                "training.engine=torch does not take on several ranks: leave them out, or use training.engine=deepspeed"
            )


class _Constructor:
    """The class behind a name, and what its constructor takes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.model = resolve(name, "model.name") if is_reference(name) else load_installed(name)
        if not (isinstance(self.model, type) and issubclass(self.model, nn.Module)):
            kind = "class" if isinstance(self.model, type) else type(self.model).__name__
            raise ConfigError(f"model.name: {name} is a {kind}, expected a class that is a torch.nn.Module")
        parameters = inspect.signature(self.model).parameters
        self.takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        self.parameters = {
            key: one for key, one in parameters.items() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
        }
        for key in ("in_channels", "out_channels"):
            if key not in self.parameters and not self.takes_any:
                raise ConfigError(
                    f"model.name: {name} takes no {key}, but ({', '.join(parameters)}): write its constructor as "
                    "__init__(self, in_channels, out_channels, ...)"
                )
        try:
            self.types = get_type_hints(self.model.__init__)
        except Exception:  # an annotation that cannot be evaluated tells no type
            self.types = {}

    def fit(self, options: dict[str, Any]) -> dict[str, tuple[Any, TypeAdapter[Any]]]:
        """Each option as the constructor's annotation has it. What is not annotated is what it looks like."""
        keys = [key for key in self.parameters if key not in _TOLD_BY_THE_DATA]
        needed = [key for key in keys if self.parameters[key].default is inspect.Parameter.empty]
        for key in options:
            if key in _TOLD_BY_THE_DATA:
                raise ConfigError(f"model.options.{key}: the data tells it; leave it out")
            if key not in keys and not self.takes_any:
                hint = closest(key, keys) or f"; valid keys here: {', '.join(keys) or 'none'}"
                raise ConfigError(f"unknown key model.options.{key} of {self.name}{hint}")
        for key in needed:
            if key not in options:
                raise ConfigError(f"model.options.{key} is missing: {self.name} has no default for it")
        return {key: self._fitted(key, value) for key, value in options.items()}

    def _fitted(self, key: str, value: Any) -> tuple[Any, TypeAdapter[Any]]:
        anything: TypeAdapter[Any] = TypeAdapter(Any)
        try:
            adapter = TypeAdapter(self.types[key]) if key in self.types else anything
        except Exception:  # a type that pydantic does not know
            adapter = anything
        if adapter is anything:
            default = self.parameters[key].default if key in self.parameters else None
            if isinstance(value, str) and not isinstance(default, str):  # --set leaves scalars as text
                value = as_numbers(value)
            return value, anything
        try:
            return adapter.validate_python(value), adapter
        except ValidationError as error:
            reason = "; ".join(problem["msg"] for problem in error.errors())
            raise ConfigError(f"model.options.{key}: {reason} (found {value!r})") from None


def _said(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
