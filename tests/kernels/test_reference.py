"""The reference scan against the expansions that the paper prints and against a loop written from the equations."""

import math
from typing import Any

import pytest
import torch

from geomano_hpc.kernels import ScanOrder, geo_scan, order_set
from geomano_hpc.kernels.reference import recursion_1d, recursion_2d
from tests.support.scan_inputs import random_inputs


def scan_point_by_point(
    inputs: dict[str, Any], orders: tuple[ScanOrder, ...], kind: str, correction: str
) -> torch.Tensor:
    """The equations with one scalar at a time: slow and plain."""
    x, dt, A, B, C, D, R = (inputs[name] for name in ("x", "dt", "A", "B", "C", "D", "R"))
    batch, height, width, channels = x.shape
    y = torch.zeros_like(x)
    index = torch.arange(height * width).view(1, height, width)
    for b in range(batch):
        for k, order in enumerate(orders):
            turned = order.turn(index)[0]
            for e in range(channels):
                for s in range(A.shape[-1]):
                    g: dict[tuple[int, int], float] = {}
                    h: dict[tuple[int, int], float] = {}
                    before = 0.0
                    for i in range(turned.shape[0]):
                        for j in range(turned.shape[1]):
                            row, column = divmod(int(turned[i, j]), width)
                            raw = float(dt[b, row, column, k, e] + inputs["dt_bias"][k, e])
                            delta = math.log1p(math.exp(raw))
                            abar = math.exp(delta * float(A[k, e, s]))
                            bx = delta * float(B[b, row, column, k, s] * x[b, row, column, e])
                            if kind == "1d":
                                state = abar * before + bx
                            else:
                                g[i, j] = abar * g.get((i, j - 1), 0.0) + bx
                                state = abar * h.get((i - 1, j), 0.0) + g[i, j]
                            h[i, j] = before = state
                            c, r = float(C[b, row, column, k, s]), float(R[k, e, s])
                            y[b, row, column, e] += (
                                c * state - r * bx if correction == "equation" else c * (state - r * bx)
                            )
        for k in range(len(orders)):
            y[b] += D[k] * x[b]
    return y


@pytest.mark.parametrize("kind", ["1d", "2d"])
@pytest.mark.parametrize("correction", ["equation", "state"])
@pytest.mark.parametrize("orders", ["paper", "corners"])
def test_scan_equals_the_equations_point_by_point(kind: str, correction: str, orders: str) -> None:
    inputs = random_inputs()
    found = geo_scan(backend="reference", **inputs, orders=order_set(orders), kind=kind, correction=correction)
    torch.testing.assert_close(found, scan_point_by_point(inputs, order_set(orders), kind, correction))


def test_hidden_states_of_the_centre_are_those_printed_in_the_paper() -> None:
    """Section "Theoretical Insights": h_4 of a 3 x 3 grid, constant A and B, for the four directions."""
    a, b = 0.5, 3.0
    expected_exponents = [
        {0: 4, 1: 3, 2: 2, 3: 1, 4: 0},
        {8: 4, 7: 3, 6: 2, 5: 1, 4: 0},
        {0: 4, 3: 3, 6: 2, 1: 1, 4: 0},
        {8: 4, 5: 3, 2: 2, 7: 1, 4: 0},
    ]
    for order, exponents in zip(order_set("paper"), expected_exponents, strict=True):
        for source in range(9):
            x = torch.zeros(1, 3, 3)
            x.view(-1)[source] = 1.0
            turned = order.turn(x)[..., None, None]
            h = order.turn_back(recursion_1d(torch.full_like(turned, a), b * turned))[0, 1, 1].item()
            assert h == pytest.approx(a ** exponents[source] * b if source in exponents else 0.0)


def test_2d_scan_keeps_neighbours_near() -> None:
    """Appendix "Geometric Consistency": in a 3 x 3 grid x_{1,1} reaches x_{3,3} with A^8 in 1D and with A^4 in 2D."""
    a = 0.5
    x = torch.zeros(1, 3, 3, 1, 1)
    x[0, 0, 0] = 1.0
    abar = torch.full_like(x, a)
    assert recursion_1d(abar, x)[0, 2, 2].item() == pytest.approx(a**8)
    assert recursion_2d(abar, x)[0, 2, 2].item() == pytest.approx(a**4)


def test_state_form_with_mask_one_removes_the_duplicated_input() -> None:
    """With R = 1 the hidden state loses exactly its own B x, so the first point of a scan contributes nothing."""
    inputs = random_inputs(K=1)
    inputs["R"] = torch.ones_like(inputs["R"])
    inputs["D"] = torch.zeros_like(inputs["D"])
    y = geo_scan(backend="reference", **inputs, orders=(ScanOrder(),), kind="2d", correction="state")
    assert y[0, 0, 0].abs().max() < 1e-14
    assert y[0, 2, 3].abs().max() > 1e-3


def test_low_rank_time_step_equals_its_product() -> None:
    inputs = random_inputs(rank=2)
    expanded = dict(inputs, dt=torch.einsum("bhwkr,ker->bhwke", inputs["dt"], inputs["dt_weight"]), dt_weight=None)
    low_rank = geo_scan(backend="reference", **inputs, orders=order_set("paper"), kind="2d")
    torch.testing.assert_close(
        low_rank, geo_scan(backend="reference", **expanded, orders=order_set("paper"), kind="2d")
    )


@pytest.mark.parametrize("kind", ["1d", "2d"])
def test_gradients_of_every_input(kind: str) -> None:
    inputs = random_inputs(height=2, width=3, dstate=2, rank=1)
    names = list(inputs)

    def scan(*tensors: torch.Tensor) -> torch.Tensor:
        named: dict[str, Any] = dict(zip(names, tensors, strict=True))
        return geo_scan(backend="reference", **named, orders=order_set("paper"), kind=kind)

    assert torch.autograd.gradcheck(scan, [tensor.requires_grad_() for tensor in inputs.values()])


def test_nan_in_gives_nan_out() -> None:
    inputs = random_inputs()
    inputs["dt"][0, 0, 0, 0, 0] = math.nan
    assert geo_scan(backend="reference", **inputs, orders=order_set("paper"), kind="2d").isnan().any()


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1)])
def test_degenerate_grids(shape: tuple[int, int]) -> None:
    inputs = random_inputs(height=shape[0], width=shape[1])
    one, two = (geo_scan(backend="reference", **inputs, orders=order_set("paper"), kind=kind) for kind in ("1d", "2d"))
    torch.testing.assert_close(one, two)  # on a line the two recursions are the same


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "3d"}, "kind is '3d'"),
        ({"correction": "none"}, "correction is 'none'"),
        ({"D": torch.zeros(4, 7)}, r"D has shape \(4, 7\), expected \(4, 2\)"),
    ],
)
def test_wrong_arguments_are_named(change: dict[str, Any], message: str) -> None:
    arguments = {**random_inputs(), "orders": order_set("paper"), "kind": "2d", **change}
    with pytest.raises(ValueError, match=message):
        geo_scan(**arguments)
