"""The benchmark of the linear map: its fields are what it says, and trainings are done once."""

from pathlib import Path

import pytest
import torch

from geomano_hpc.bench.linear_map import (
    VARIANTS,
    bench_linear_map,
    draw_linear_map,
    linear_map_table,
    vorticity_and_velocity,
)
from geomano_hpc.config.models import model_section

TINY = {"name": "fno", "depth": 1, "embedding": 4, "modes": 3}


def test_the_velocity_has_no_divergence_and_its_curl_is_the_vorticity() -> None:
    w, velocity = vorticity_and_velocity(torch.Generator().manual_seed(0), 40, 16)
    along_x, along_y = torch.meshgrid(*2 * [torch.fft.fftfreq(16, 1 / 16, dtype=torch.float64)], indexing="ij")
    u, v = (torch.fft.fft2(velocity[..., axis].double()) for axis in (0, 1))
    assert (along_x * u + along_y * v).abs().max() < 1e-5 * (along_x * u).abs().max()
    curl = torch.fft.ifft2(1j * (along_x * v - along_y * u)).real
    scale = (curl * w[..., 0]).sum() / w.square().sum()
    torch.testing.assert_close(curl, scale * w[..., 0].double(), rtol=1e-4, atol=1e-4)
    assert w.std().item() == pytest.approx(1, rel=0.1)
    assert velocity.std().item() == pytest.approx(1, rel=0.1)


def test_every_variant_is_a_model() -> None:
    assert len({str(model_section(dict(keys)).model_dump()) for keys in VARIANTS.values()}) == len(VARIANTS)


@pytest.mark.slow
def test_rates_are_widened_and_what_is_known_is_not_trained_again(tmp_path: Path) -> None:
    out = tmp_path / "out" / "map.json"
    found = bench_linear_map({"tiny": TINY}, 3, 2, tmp_path, out)
    (row,) = found["rows"]
    rates = sorted(row["by_rate"])
    assert rates[0] < row["rate"] < rates[-1]
    assert row["by_rate"][row["rate"]] == min(row["by_rate"].values()) == row["errors"][0]
    assert len(row["errors"]) == 2
    written = (tmp_path / "linear_map.json").stat().st_mtime_ns
    assert bench_linear_map({"tiny": TINY}, 3, 2, tmp_path, None)["rows"] == found["rows"]
    assert (tmp_path / "linear_map.json").stat().st_mtime_ns == written
    assert any("tiny" in line and "±" in line for line in linear_map_table(found))
    draw_linear_map(found, out.with_suffix(".png"))
    assert out.with_suffix(".png").stat().st_size > 5_000
