"""Models of the package neuraloperator, behind the interface of this package's models.

Axes: B batch, H x W grid, C channels.
"""

from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.utils import parametrize

from geomano_hpc.config import ComputeConfig, ModelConfig, Recipe
from geomano_hpc.errors import GeomanoError
from geomano_hpc.models.parts.grid_model import GridModel


class SpectralConfig(ModelConfig):
    counted_by_shapes: ClassVar[bool] = False  # they look at values

    def check_recipe(self, recipe: Recipe) -> None:
        if recipe.compute != ComputeConfig():
            raise ValueError(
                f"model {self.name} is computed as its package does, in float32: leave compute at its defaults"
            )


class ChannelsLast(GridModel):
    """A model of neuraloperator, which has channels first, with channels last and real parameters only."""

    operator: nn.Module

    def wrap(self, operator: nn.Module) -> None:
        self.operator = operator
        _store_as_real(operator)
        self.register_state_dict_post_hook(_only_tensors)

    def forward(self, x_BHWC: torch.Tensor) -> torch.Tensor:
        self.check_input(x_BHWC)
        return self.operator(x_BHWC.movedim(-1, 1)).movedim(1, -1)


def _only_tensors(_module: nn.Module, state: dict[str, Any], _prefix: str, _metadata: Any) -> None:
    """neuraloperator puts its constructor's arguments among the tensors."""
    state.pop("_metadata", None)


def neuraloperator() -> Any:
    try:
        import neuralop.models
    except ImportError as error:
        raise GeomanoError(
            f"models fno and uno need the package neuraloperator ({error}): pip install 'geomano_hpc[baselines]'"
        ) from error
    return neuralop.models


class _Complex(nn.Module):
    def forward(self, real: torch.Tensor, imaginary: torch.Tensor) -> torch.Tensor:
        return torch.complex(real, imaginary)

    def right_inverse(self, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return value.real.contiguous(), value.imag.contiguous()


def _store_as_real(operator: nn.Module) -> None:
    """Keep spectral weights as pairs of real numbers: DeepSpeed's gradient norm would drop the imaginary parts."""
    for module in list(operator.modules()):
        weight = getattr(module, "weight", None)
        tensor = getattr(weight, "tensor", None)
        if isinstance(weight, nn.Module) and isinstance(tensor, nn.Parameter) and tensor.is_complex():
            del module.weight
            module.weight = nn.Parameter(tensor.detach().clone())
            parametrize.register_parametrization(module, "weight", _Complex())
    left = [name for name, parameter in operator.named_parameters() if parameter.is_complex()]
    assert not left, f"complex parameters of neuraloperator: {left}"
