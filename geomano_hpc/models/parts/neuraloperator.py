"""FNO and U-NO of the package neuraloperator, behind the interface of this package's models.

Axes: B batch, H x W grid, C channels.
"""

import contextlib
import io
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from geomano_hpc.config import FnoConfig, UnoConfig
from geomano_hpc.errors import GeomanoError


class ChannelsLast(nn.Module):
    """A model of neuraloperator, which has channels first, with channels last and real parameters only."""

    def __init__(self, operator: nn.Module) -> None:
        super().__init__()
        self.operator = operator
        _store_as_real(operator)
        self.register_state_dict_post_hook(_only_tensors)

    def forward(self, x_BHWC: torch.Tensor) -> torch.Tensor:
        return self.operator(x_BHWC.movedim(-1, 1)).movedim(1, -1)


def _only_tensors(_module: nn.Module, state: dict[str, Any], _prefix: str, _metadata: Any) -> None:
    """neuraloperator puts its constructor's arguments among the tensors."""
    state.pop("_metadata", None)


def build_fno(config: FnoConfig, in_channels: int, out_channels: int) -> nn.Module:
    fno = _neuraloperator().FNO(
        n_modes=(2 * config.modes, 2 * config.modes),
        in_channels=in_channels,
        out_channels=out_channels,
        hidden_channels=config.embedding,
        n_layers=config.depth,
    )
    return ChannelsLast(fno)


def build_uno(config: UnoConfig, in_channels: int, out_channels: int) -> nn.Module:
    """Five levels: the grid is halved before the third and doubled after it, with twice the channels in between."""
    narrow, wide = config.embedding, 2 * config.embedding
    many, few = [2 * config.modes] * 2, [config.modes] * 2
    with contextlib.redirect_stdout(io.StringIO()):  # it prints its settings
        uno = _neuraloperator().UNO(
            in_channels=in_channels,
            out_channels=out_channels,
            hidden_channels=narrow,
            lifting_channels=wide,
            projection_channels=wide,
            n_layers=5,
            uno_out_channels=[narrow, wide, wide, wide, narrow],
            uno_n_modes=[many, few, few, few, many],
            uno_scalings=[[1, 1], [0.5, 0.5], [1, 1], [2, 2], [1, 1]],
            channel_mlp_skip="linear",  # its default cannot change the number of channels
        )
    return ChannelsLast(uno)


def _neuraloperator() -> Any:
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
