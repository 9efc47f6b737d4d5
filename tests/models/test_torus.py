"""A model on a domain without a boundary does not know where its grid begins."""

from typing import Any

import pytest
import torch

from geomano_hpc.errors import ConfigError
from geomano_hpc.models.geomano import GeoMaNO
from geomano_hpc.models.parts.sampling import Sampling

TORUS = Sampling(periodic=(True, True))
CHANNEL = Sampling(periodic=(False, True))  # walls along H, periodic along W


def model(**options: Any) -> GeoMaNO:
    torch.manual_seed(0)
    keys = {"depth": 2, "embedding": 16, "dstate": 4, "kind": "2d", "periodic": "auto"}
    return GeoMaNO(in_channels=2, out_channels=1, **{**keys, **options})


def off_after_shift(one: GeoMaNO, shift: tuple[int, int], grid: tuple[int, int] = (9, 12)) -> float:
    x = torch.randn(1, *grid, 2, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return float((one(x.roll(shift, (1, 2))) - one(x).roll(shift, (1, 2))).abs().max() / one(x).abs().max())


VARIANTS: dict[str, dict[str, Any]] = {
    "paper's orders": {},
    "corners": {"orders": "corners", "correction": "learnable"},
    "large convolutions": {"conv_size": 7, "mlp_conv": 5},
    "spectral": {"spectral_modes": 3},
    "transport": {"transport": 4},
    "linear way out": {"way_out": "linear", "scan_bias": True},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shift", [(1, 0), (0, 1), (4, 7)])
def test_on_a_torus_the_model_commutes_with_every_shift(variant: str, shift: tuple[int, int]) -> None:
    one = model(**VARIANTS[variant])
    one.place(TORUS)
    assert off_after_shift(one, shift) < 1e-5


def test_without_closed_rings_it_does_not() -> None:
    one = model(periodic="off")
    one.place(TORUS)
    assert off_after_shift(one, (4, 7)) > 1e-3


def test_in_a_channel_it_commutes_with_shifts_along_the_channel_only() -> None:
    one = model()
    one.place(CHANNEL)
    assert off_after_shift(one, (0, 5)) < 1e-5
    assert off_after_shift(one, (3, 0)) > 1e-3


def test_a_closed_line_commutes_with_shifts() -> None:
    one = model(domain="1d", kind="1d", positional_encoding=False)
    one.place(Sampling(periodic=(False, True)))
    assert off_after_shift(one, (0, 5), grid=(1, 16)) < 1e-5


def test_patches_on_a_torus_commute_with_shifts_by_patches() -> None:
    one = model(encoder="local", patch=3)
    one.place(TORUS)
    assert off_after_shift(one, (3, 6)) < 1e-5
    assert off_after_shift(one, (1, 0)) > 1e-4


def test_a_spectral_branch_needs_a_domain_without_ends() -> None:
    with pytest.raises(ConfigError, match=r"model.spectral_modes is of periodic domains"):
        model(spectral_modes=3).place(CHANNEL)
    with pytest.raises(ConfigError, match=r"model.periodic must be auto"):
        model(spectral_modes=3, periodic="off").place(TORUS)
