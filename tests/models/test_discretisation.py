"""One model on several grids of one domain."""

import math
from typing import Any

import pytest
import torch

from geomano_hpc.models.geomano import GeoMaNO
from geomano_hpc.models.parts.sampling import Sampling

VARIANTS: dict[str, dict[str, Any]] = {
    "paper's orders": {},
    "corners": {"orders": "corners", "positional_encoding": True},
    "1d": {"kind": "1d"},
    "large convolutions": {"conv_size": 7, "mlp_conv": 5},
    "transport": {"transport": 4},
    "patches": {"encoder": "local", "patch": 2},
    "state": {"correction_form": "state", "correction": "learnable"},
    "input": {"correction_form": "input", "correction": "learnable"},
}


def model(**options: Any) -> GeoMaNO:
    torch.manual_seed(0)
    return GeoMaNO(in_channels=1, out_channels=1, depth=2, embedding=16, dstate=4, **options)


def smooth(*grid: int) -> torch.Tensor:
    """A field of long waves, zero at the walls, on points from wall to wall."""
    i, j = torch.meshgrid(*(torch.linspace(0, math.pi, n) for n in grid), indexing="ij")
    return (i.sin() * j.sin() + 0.5 * (2 * i).sin() * (3 * j).sin())[None, :, :, None]


@pytest.mark.parametrize("variant", VARIANTS)
def test_on_the_grid_of_the_training_no_bit_changes(variant: str) -> None:
    one, x = model(**VARIANTS[variant]), smooth(9, 11)
    with torch.no_grad():
        before = one(x)
        one.place(Sampling(points=(9, 11)))
        assert torch.equal(one(x), before)


@pytest.mark.parametrize("variant", ["paper's orders", "corners", "large convolutions", "patches", "state"])
@pytest.mark.parametrize("times", [2, 0.5])
def test_another_grid_gives_about_the_same_at_the_same_points(variant: str, times: float) -> None:
    """With random weights, so that no training has made up for it. In pixels it is farther off."""
    here = int(32 * times) + 1
    one, sampling = model(**VARIANTS[variant]), Sampling((1 / times, 1 / times), points=(33, 33))
    few, many = slice(None, None, max(1, int(1 / times))), slice(None, None, max(1, int(times)))
    with torch.no_grad():
        trained = one(smooth(33, 33))[:, few, few]
        one.place(sampling)
        physical = one(smooth(here, here))[:, many, many]
        one.counts_points = True
        pixels = one(smooth(here, here))[:, many, many]
    off, in_pixels = ((found - trained).norm() / trained.norm() for found in (physical, pixels))
    assert off < 0.7 * in_pixels, (off, in_pixels)


def test_axes_with_spacings_of_their_own() -> None:
    one = model(orders="corners", positional_encoding=True)
    with torch.no_grad():
        trained = one(smooth(33, 33))
        one.place(Sampling((0.5, 1.0), points=(33, 33)))
        finer_down = one(smooth(65, 33))[:, ::2]
        one.counts_points = True
        in_pixels = one(smooth(65, 33))[:, ::2]
    assert (finer_down - trained).norm() < 0.6 * (in_pixels - trained).norm()


def test_the_switch_gives_the_old_behaviour() -> None:
    x = smooth(17, 17)
    pixels, physical = model(discretisation="pixel"), model()
    with torch.no_grad():
        plain = pixels(x)
        assert torch.equal(plain, physical(x))  # equal weights, and nobody has said where points lie
        for one in (pixels, physical):
            one.place(Sampling((0.5, 0.5), points=(9, 9)))
        assert torch.equal(pixels(x), plain)
        assert not torch.allclose(physical(x), plain, atol=1e-4)
