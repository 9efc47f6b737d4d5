"""1D, 2D and 3D domains: their defaults, their shapes, what each of them scans."""

import pytest
import torch
from pydantic import ValidationError

from geomano_hpc.errors import ConfigError
from geomano_hpc.models import build_model
from geomano_hpc.models.geomano import GeomanoConfig, GeoMaNOLayer


def of_domain(domain: str, **changes: object) -> GeomanoConfig:
    return GeomanoConfig.model_validate({"depth": 1, "embedding": 8, "dstate": 2, "domain": domain, **changes})


def test_position_is_encoded_in_1d_and_3d_unless_switched() -> None:
    """ "For PDEs on 1D or 3D physical domains ...": section "Geometry-Aware Encoder and Decoder"."""
    assert {domain: of_domain(domain).positional_encoding for domain in ("1d", "2d", "3d")} == {
        "1d": True,
        "2d": False,
        "3d": True,
    }
    for domain in ("1d", "2d", "3d"):
        for switch in (True, False):
            config = of_domain(domain, positional_encoding=switch)
            assert config.positional_encoding is switch
            encoder = build_model(config, in_channels=1, out_channels=1).encoder
            assert (encoder.position is not None) is switch  # type: ignore[union-attr]


def test_domain_decides_the_scan_unless_it_is_named() -> None:
    found = {domain: (of_domain(domain).kind, of_domain(domain).orders) for domain in ("1d", "2d", "3d")}
    assert found == {"1d": ("1d", "sequence"), "2d": ("2d", "paper"), "3d": ("1d", "paper")}
    assert of_domain("3d", kind="2d").kind == "2d"  # a row of the ablation
    assert of_domain("2d", orders="corners").orders == "corners"


@pytest.mark.parametrize("correction", ["none", "01", "learnable"])
@pytest.mark.parametrize("encoder", [{}, {"encoder": "local", "patch": 3}])
def test_line_is_a_grid_of_one_row(encoder: dict[str, object], correction: str) -> None:
    model = build_model(of_domain("1d", correction=correction, **encoder), in_channels=2, out_channels=1)
    x = torch.randn(2, 1, 17, 2)
    y = model(x)
    assert y.shape == (2, 1, 17, 1)
    y.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    with pytest.raises(ConfigError, match="domain 1d takes a 1 x L grid, found 17 x 1"):
        model(x.transpose(1, 2))


def test_line_is_scanned_forth_and_back() -> None:
    """A change in the middle reaches both ends; with the convolution and one direction it would reach one."""
    kernel = GeoMaNOLayer(of_domain("1d")).kernel
    assert [(order.rows_backwards, order.columns_backwards) for order in kernel.orders] == [
        (False, False),
        (True, True),
    ]
    z = torch.randn(1, 1, 11, 8)
    changed = z.clone()
    changed[:, :, 5] += 1
    moved = (kernel(changed) - kernel(z)).abs().amax(dim=-1)[0, 0]
    assert moved[0] > 0
    assert moved[-1] > 0


@pytest.mark.parametrize(
    ("orders", "quadrants"), [("paper", {(0, 0), (1, 1)}), ("corners", {(0, 0), (0, 1), (1, 0), (1, 1)})]
)
def test_quadrants_that_a_point_sees_of_a_2d_scan(orders: str, quadrants: set[tuple[int, int]]) -> None:
    """The paper's four orders see two quadrants of a point; ours, `corners`, see all four."""
    torch.manual_seed(0)
    kernel = GeoMaNOLayer(of_domain("2d", orders=orders)).kernel.double()
    z = torch.randn(1, 9, 9, 8, dtype=torch.float64, requires_grad=True)
    kernel(z)[0, 4, 4].sum().backward()
    assert z.grad is not None
    seen = z.grad[0].abs().amax(dim=-1) > 0
    far = {(row > 4, column > 4) for row in (0, 8) for column in (0, 8) if seen[row, column]}
    assert far == {(bool(row), bool(column)) for row, column in quadrants}


def test_frames_of_a_3d_domain_are_features() -> None:
    model = build_model(of_domain("3d"), in_channels=10, out_channels=1)
    frames = torch.randn(1, 6, 6, 10)
    other_order = frames.flip(-1)
    assert model(frames).shape == (1, 6, 6, 1)
    assert not torch.allclose(model(frames), model(other_order))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"domain": "1d", "orders": "paper", "correction": "0011"}, "domain 1d goes with orders sequence"),
        ({"domain": "1d", "kind": "2d"}, "domain 1d goes with orders sequence and kind 1d"),
        ({"domain": "1d", "correction": "0011"}, "needs two digits"),
        ({"domain": "2d", "correction": "01"}, "needs four digits"),
        ({"domain": "4d"}, "Input should be 'auto', '1d', '2d' or '3d'"),
        ({"encoder": "global"}, "encoder global does not go with patch 1"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        GeomanoConfig.model_validate(changes)
