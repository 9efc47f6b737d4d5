"""The scan on the grid at hand: spacing of its points, and axes that are rings. The reference against the equations."""

import math
from typing import Any

import pytest
import torch

from geomano_hpc.kernels import ScanOrder, geo_scan, order_set
from tests.support.scan_inputs import ALL_EIGHT, random_inputs, scan_and_gradients


def decays(inputs: dict[str, Any], order: ScanOrder, along: float, down: float) -> tuple[torch.Tensor, ...]:
    """Of one direction and channel and dstate 0, turned: Abar of the row, of the column, and dt B x."""
    delta = torch.nn.functional.softplus(inputs["dt"][0, ..., 0, 0] + inputs["dt_bias"][0, 0])
    A = inputs["A"][0, 0, 0]
    turned = [order.turn(one[None])[0] for one in (delta, inputs["B"][0, ..., 0, 0], inputs["x"][0, ..., 0])]
    delta, B, x = turned
    return torch.exp(along * delta * A), torch.exp(down * delta * A), delta * B * x


ACTIVATIONS = ("x", "dt", "B", "C")


def one_state(height: int = 4, width: int = 5) -> dict[str, Any]:
    return random_inputs(height=height, width=width, channels=1, dstate=1, K=1)


@pytest.mark.parametrize("order", ALL_EIGHT)
def test_each_axis_decays_by_its_own_spacing_and_the_input_counts_by_area(order: ScanOrder) -> None:
    inputs = one_state()
    spacing = (0.5, 3.0)
    along, down = (spacing[0], spacing[1]) if order.column_major else (spacing[1], spacing[0])
    a_row, a_column, u = decays(inputs, order, along, down)
    h = torch.zeros_like(u)
    for j in range(u.shape[1]):
        column = torch.zeros(())
        for i in range(u.shape[0]):
            counts = [along + (1 - along) / 2 * (k == 0) for k in range(j + 1)]  # the first one's cell is whole
            g = sum(counts[k] * math.prod(a_row[i, k + 1 : j + 1].tolist()) * u[i, k] for k in range(j + 1))
            g = g + (1 - along) / 2 * u[i, j]  # and so is a point's own
            column = a_column[i, j] * column + (down + (1 - down) / 2 * (i == 0)) * g
            h[i, j] = column + (1 - down) / 2 * g
    C, D, R, x = inputs["C"][0, ..., 0, 0], inputs["D"][0, 0], inputs["R"][0, 0, 0], inputs["x"][0, ..., 0]
    expected = C * order.turn_back(h[None])[0] - R * order.turn_back(u[None])[0] + D * x
    y = geo_scan(**inputs, orders=(order,), kind="2d", spacing=spacing, backend="reference")
    torch.testing.assert_close(y[0, ..., 0], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("correction", ["equation", "state", "input"])
@pytest.mark.parametrize("kind", ["1d", "2d"])
def test_a_line_counts_each_cell_from_the_near_end_of_the_first_to_the_far_end_of_its_own(
    kind: str, correction: str
) -> None:
    inputs = random_inputs(height=1, width=6, channels=1, dstate=1, K=1)
    s, m = 0.5, 0.25
    a, _, u = (one[0] for one in decays(inputs, ScanOrder(), s, 1.0))
    C, D, R = inputs["C"][0, 0, :, 0, 0], inputs["D"][0, 0], inputs["R"][0, 0, 0]
    h, states = torch.zeros(()), []
    for t in range(6):
        h = a[t] * h + (s + m * (t == 0)) * u[t]
        states.append(h + m * u[t])
    x = inputs["x"][0, 0, :, 0]
    less = {"equation": R * u, "state": C * R * u, "input": C * R * x}[correction]
    options: dict[str, Any] = {"orders": (ScanOrder(),), "kind": kind, "correction": correction, "spacing": (1.0, s)}
    y = geo_scan(**inputs, **options, backend="reference")[0, 0, :, 0]
    torch.testing.assert_close(y, C * torch.stack(states) - less + D * x)


@pytest.mark.parametrize("correction", ["equation", "state"])
@pytest.mark.parametrize("times", [2, 4])
def test_smooth_fields_give_the_same_on_a_finer_grid(times: int, correction: str) -> None:
    """At the points that both grids have, up to their edges; the difference falls with the spacing."""
    on = {}
    for n in (20, 40):
        fields = {}
        for points, spacing in ((n + 1, 20 / n), (times * n + 1, 20 / n / times)):
            inputs = smooth_inputs(points)
            options: dict[str, Any] = {"orders": "corners", "kind": "2d", "correction": correction}
            y = geo_scan(**inputs, **options, spacing=(spacing, spacing), backend="torch")
            fields[points] = y[:, :: (points - 1) // n, :: (points - 1) // n]
        coarse, fine = fields.values()
        on[n] = ((coarse - fine).norm() / coarse.norm()).item()
    assert on[20] < 0.02
    assert on[40] < 0.6 * on[20]


def smooth_inputs(points: int) -> dict[str, Any]:
    """Of 20 steps that dt was learned for, along both axes."""
    along = torch.linspace(0, 1, points, dtype=torch.float64)
    waves = torch.stack([torch.sin(k * along[:, None] + (k + 1) * along[None] + k) for k in range(6)], dim=-1)
    parameters = {n: t for n, t in random_inputs(channels=2, dstate=2, K=4).items() if n not in ACTIVATIONS}
    fields = {"x": waves[..., :2], "dt": waves[..., 2:4, None].repeat(1, 1, 2, 2) - 2}
    fields |= {"B": waves[..., None, 1:3].repeat(1, 1, 4, 1), "C": waves[..., None, 3:5].repeat(1, 1, 4, 1)}
    return parameters | {name: field[None] for name, field in fields.items()}


def test_twice_the_points_of_constant_fields_give_the_same_in_the_middle() -> None:
    """What the spacing is for: fields that do not change from point to point, far from the borders."""
    coarse = random_inputs(height=1, width=1)
    wide = {n: t.expand(1, 60, 60, *t.shape[3:]).clone() if n in ACTIVATIONS else t for n, t in coarse.items()}
    fine = {n: t.expand(1, 120, 120, *t.shape[3:]).clone() if n in ACTIVATIONS else t for n, t in coarse.items()}
    both = [
        geo_scan(**one, orders="paper", kind="2d", spacing=spacing, backend="reference")[0, n, n]
        for one, spacing, n in ((wide, (0.06, 0.06), 30), (fine, (0.03, 0.03), 60))
    ]
    torch.testing.assert_close(both[0], both[1], rtol=0.005, atol=0)
    pixels = geo_scan(**fine, orders="paper", kind="2d", spacing=(0.06, 0.06), backend="reference")[0, 60, 60]
    assert (pixels - both[0]).norm() > 0.1 * both[0].norm()


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("columns", [True, False])
@pytest.mark.parametrize("order", ALL_EIGHT)
def test_on_a_ring_a_row_begins_with_the_state_with_which_it_ends(order: ScanOrder, rows: bool, columns: bool) -> None:
    """Against the same grid laid out many times along its periodic axes: the last copy has forgotten the first."""
    inputs = random_inputs(height=3, width=4, K=1)
    inputs["A"] = inputs["A"] - 1.0  # so that it does forget
    copies = 60
    times = (1, copies if columns else 1, copies if rows else 1)
    long = {n: t.repeat(*times, 1, *[1] * (t.ndim - 4)) if n in ACTIVATIONS else t for n, t in inputs.items()}
    y = geo_scan(**inputs, orders=(order,), kind="2d", periodic=(columns, rows), backend="reference")
    laid_out = geo_scan(**long, orders=(order,), kind="2d", backend="torch")
    i, j = 3 * (times[1] // 2), 4 * (times[2] // 2)
    torch.testing.assert_close(y, laid_out[:, i : i + 3, j : j + 4], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("periodic", [(True, True), (True, False), (False, True)])
def test_gradients_on_rings_are_those_of_differences(periodic: tuple[bool, bool]) -> None:
    inputs = random_inputs(height=2, width=3, K=2, rank=1)
    names = [name for name, tensor in inputs.items() if tensor is not None]
    leaves = tuple(inputs[name].detach().requires_grad_() for name in names)

    def scan(*tensors: torch.Tensor) -> torch.Tensor:
        options: dict[str, Any] = {"orders": order_set("paper")[1:3], "periodic": periodic, "spacing": (0.7, 1.6)}
        given: dict[str, Any] = dict(zip(names, tensors, strict=True))
        return geo_scan(**given, **options, kind="2d", backend="reference")

    assert torch.autograd.gradcheck(scan, leaves)


def test_a_spacing_of_one_and_no_rings_change_no_bit() -> None:
    inputs = random_inputs(height=5, width=6, dtype=torch.float32)
    plain = scan_and_gradients(inputs, orders="paper", kind="2d", backend="reference")
    said: dict[str, Any] = {"spacing": (1.0, 1.0), "periodic": (False, False)}
    again = scan_and_gradients(inputs, orders="paper", kind="2d", backend="reference", **said)
    assert all(torch.equal(plain[name], again[name]) for name in plain)


def test_what_has_no_meaning_is_refused() -> None:
    inputs = random_inputs()
    with pytest.raises(ValueError, match="1d scan of a plane has no rings"):
        geo_scan(**inputs, orders="paper", kind="1d", periodic=(True, True))
    with pytest.raises(ValueError, match=r"spacing is \(0.0, 1.0\)"):
        geo_scan(**inputs, orders="paper", kind="2d", spacing=(0.0, 1.0))
