"""The ablation without the scan, and the time steps with which a scan begins."""

from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError

from geomano_hpc.models import build_model
from geomano_hpc.models.geomano import GeomanoConfig, GeoMaNOLayer


def reach(config: GeomanoConfig) -> int:
    """How many points away from a change in the middle of a line of points the output changes."""
    torch.manual_seed(0)
    model = build_model(config, 1, 1).double()
    x = torch.randn(1, 1, 41, 1, dtype=torch.float64)
    changed = x.clone()
    changed[0, 0, 20] += 1.0
    apart = (model(changed) - model(x)).abs().flatten()
    return int((apart.nonzero() - 20).abs().max())


@pytest.mark.parametrize("conv_size", [3, 7])
def test_without_the_scan_a_point_sees_what_its_convolutions_reach(conv_size: int) -> None:
    config = GeomanoConfig(depth=2, embedding=8, dstate=2, conv_size=conv_size, scan=False)
    assert reach(config) == 2 * (conv_size // 2)
    assert reach(config.model_copy(update={"scan": True})) == 20


def test_without_the_scan_none_of_its_parameters_is_there() -> None:
    with_scan, without = (GeoMaNOLayer(GeomanoConfig(embedding=8, dstate=2, scan=scan)) for scan in (True, False))
    missing = set(with_scan.state_dict()) - set(without.state_dict())
    assert set(without.state_dict()) < set(with_scan.state_dict())
    assert missing == {f"kernel.{n}" for n in ("A_log", "skip", "dt_bias", "dt_weight", "scan_projection.weight")}


def test_a_scan_begins_with_the_time_steps_that_it_is_given() -> None:
    kernel = GeoMaNOLayer(GeomanoConfig(embedding=32, dstate=2, dt_range=(0.5, 2.0))).kernel
    steps = F.softplus(kernel.dt_bias)
    assert 0.5 <= steps.min() < 0.7
    assert 1.5 < steps.max() <= 2.0001


def test_time_steps_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ValidationError, match="give the least time step first"):
        GeomanoConfig(dt_range=(0.1, 0.01))


@pytest.mark.parametrize("scan", [True, False])
@pytest.mark.parametrize("way_out", ["gated", "product", "linear"])
def test_ways_out_of_a_kernel(way_out: Literal["gated", "product", "linear"], scan: bool) -> None:
    kernel = GeoMaNOLayer(GeomanoConfig(embedding=8, dstate=2, way_out=way_out, scan=scan)).kernel
    y, z = torch.randn(2, 1, 5, 6, 8)
    expected = {
        "gated": F.silu(F.layer_norm(y, (8,))) * F.silu(z),  # Algorithm 1
        "product": y * F.silu(z),
        "linear": y,
    }[way_out]
    torch.testing.assert_close(kernel.out(y, z), kernel.out_projection(expected))
    assert (kernel.norm is None) == (way_out != "gated")
