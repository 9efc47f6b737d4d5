"""From a model's configuration to the model, as a training computes it."""

from torch import nn

from geomano_hpc.config import ComputeConfig, ModelConfig
from geomano_hpc.models.parts.stack import checkpoint_layers, compile_dense_parts


def build_model(
    config: ModelConfig,
    in_channels: int,
    out_channels: int,
    grid: tuple[int, int] | None = None,
    compute: ComputeConfig | None = None,
) -> nn.Module:
    """A model [B, H, W, in_channels] -> [B, H, W, out_channels]. `grid` (H, W) is needed only by a model whose
    parameters depend on it, such as GeoMaNO with encoder `global`."""
    model: nn.Module = config.build(in_channels, out_channels, grid)
    if compute is not None and compute.activation_checkpointing:
        checkpoint_layers(model)
    if compute is not None and compute.compile:
        compile_dense_parts(model)
    return model


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
