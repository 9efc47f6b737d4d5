"""The GeoMamba kernel and the GeoMaNO layer, written out line by line as the paper prints them."""

import pytest
import torch
import torch.nn.functional as F

from geomano_hpc.models.geomano import GeomanoConfig, GeoMaNOLayer
from geomano_hpc.models.parts.geomamba import GeoMambaKernel

H, W = 3, 4


def traverse(x: torch.Tensor, direction: int) -> torch.Tensor:
    """Traverse_d of a grid [H, W, ...]: row-major forth and back, column-major forth and back."""
    line = (x if direction < 2 else x.transpose(0, 1)).flatten(0, 1)
    return line.flip(0) if direction % 2 else line


def traverse_back(line: torch.Tensor, direction: int) -> torch.Tensor:
    line = line.flip(0) if direction % 2 else line
    return line.unflatten(0, (H, W)) if direction < 2 else line.unflatten(0, (W, H)).transpose(0, 1)


def scan_line(kernel: GeoMambaKernel, x: torch.Tensor, d: int) -> torch.Tensor:
    """The equation of the GeoMamba-SSM for one direction; x [L, E]."""
    assert kernel.dt_weight is not None
    projected = kernel.scan_projection(x).unflatten(-1, (4, -1))[:, d]
    low, B, C = projected.split([kernel.dt_rank, kernel.dstate, kernel.dstate], dim=-1)
    dt = F.softplus(low @ kernel.dt_weight[d].T + kernel.dt_bias[d])
    A = -torch.exp(kernel.A_log[d])
    R = torch.zeros_like(A) if kernel.R is None else kernel.R[d]
    h = torch.zeros_like(A)
    lines = []
    for t in range(len(x)):
        Bx = dt[t, :, None] * B[t] * x[t, :, None]
        h = torch.exp(dt[t, :, None] * A) * h + Bx
        y = (C[t] * h - R * Bx) if kernel.correction_form == "equation" else C[t] * (h - R * Bx)
        lines.append(y.sum(dim=-1) + kernel.skip[d] * x[t])
    return torch.stack(lines)


def algorithm_1(kernel: GeoMambaKernel, z: torch.Tensor) -> torch.Tensor:
    """Algorithm 1 for one sample [H, W, D]; its lines in order."""
    assert kernel.norm is not None
    z = kernel.in_projection(z)
    channels_first = z.movedim(-1, 0)[None]
    weight, bias = kernel.convolution.weight, kernel.convolution.bias
    x = F.silu(F.conv2d(channels_first, weight, bias, padding=1, groups=len(weight))[0].movedim(0, -1))
    y = sum(traverse_back(scan_line(kernel, traverse(x, d), d), d) for d in range(4))
    assert isinstance(y, torch.Tensor)
    return kernel.out_projection(F.silu(kernel.norm(y)) * F.silu(z))


@pytest.mark.parametrize("form", ["equation", "state"])
@pytest.mark.parametrize("correction", ["none", "0001", "0011", "0111", "learnable"])
def test_kernel_is_algorithm_1(correction: str, form: str) -> None:
    torch.manual_seed(0)
    names = {"kind": "1d", "correction": correction, "correction_form": form, "scan_backend": "reference"}
    config = GeomanoConfig.model_validate({"embedding": 18, "dstate": 3, **names})
    kernel = GeoMaNOLayer(config).kernel.double()
    assert kernel.dt_rank == 2
    if correction == "learnable":
        torch.nn.init.normal_(kernel.R)
    z = torch.randn(2, H, W, 18, dtype=torch.float64)
    expected = torch.stack([algorithm_1(kernel, sample) for sample in z])
    assert torch.allclose(kernel(z), expected, rtol=1e-9, atol=1e-12)


def test_mask_digits_belong_to_the_directions_in_the_papers_order() -> None:
    kernel = GeoMaNOLayer(GeomanoConfig(embedding=4, dstate=2, correction="0110")).kernel
    assert kernel.R is not None
    assert [bool(direction.all()) for direction in kernel.R] == [False, True, True, False]
    assert "R" not in kernel.state_dict()  # a mask is configuration, not a weight
    assert "R" in GeoMaNOLayer(GeomanoConfig(embedding=4, dstate=2, correction="learnable")).kernel.state_dict()


def test_layer_is_prenorm_with_two_residuals() -> None:
    layer = GeoMaNOLayer(GeomanoConfig(embedding=8, dstate=2))
    z = torch.randn(1, H, W, 8)
    s = z + layer.kernel(layer.kernel_norm(z))
    assert torch.equal(layer(z), s + layer.mlp(layer.mlp_norm(s)))
    for parameters in (layer.kernel.out_projection.parameters(), layer.mlp[-1].parameters()):
        for parameter in parameters:
            torch.nn.init.zeros_(parameter)
    assert torch.equal(layer(z), z)  # nothing else stands between input and output
