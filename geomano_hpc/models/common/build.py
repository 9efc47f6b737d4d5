"""From a model's configuration to the model. All models map [B, H, W, C_in] to [B, H, W, C_out]."""

from torch import nn

from geomano_hpc.config import ComputeConfig, FnoConfig, GeomanoConfig, ModelConfig, TransolverConfig
from geomano_hpc.models.geomano import GeoMaNO
from geomano_hpc.models.parts.stack import checkpoint_layers, compile_dense_parts
from geomano_hpc.models.transolver import Transolver


def build_model(
    config: ModelConfig,
    in_channels: int,
    out_channels: int,
    grid: tuple[int, int] | None = None,
    compute: ComputeConfig | None = None,
) -> nn.Module:
    """`grid` (H, W) is needed only by a model whose parameters depend on it: GeoMaNO with encoder `global`."""
    if isinstance(config, GeomanoConfig):
        model: nn.Module = GeoMaNO(config, in_channels, out_channels, grid)
    elif isinstance(config, TransolverConfig):
        model = Transolver(config, in_channels, out_channels)
    else:
        from geomano_hpc.models.parts.neuraloperator import build_fno, build_uno

        if isinstance(config, FnoConfig):
            model = build_fno(config, in_channels, out_channels)
        else:
            model = build_uno(config, in_channels, out_channels)
    if compute is not None and compute.activation_checkpointing:
        checkpoint_layers(model)
    if compute is not None and compute.compile:
        compile_dense_parts(model)
    return model


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
