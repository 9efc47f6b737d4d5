"""Spacing that differs by axis, and rings: every backend that computes on a CPU, against the float64 reference."""

from typing import Any

import pytest
import torch

from geomano_hpc.kernels import ScanOrder, geo_scan, order_set
from tests.support.scan_inputs import ALL_EIGHT, assert_like_reference, random_inputs, scan_and_gradients

FLOAT32 = 1e-5
RINGS = [(False, False), (True, False), (False, True), (True, True)]
BOTH = (True, True)

every_backend = pytest.mark.parametrize("backend", ["cpu", "torch"])
every_ring = pytest.mark.parametrize("periodic", RINGS, ids=["open", "ring along H", "ring along W", "torus"])


def options(backend: str, stretch: float = 1.0, periodic: tuple[bool, bool] = BOTH, **more: Any) -> dict[str, Any]:
    """`stretch` is the spacing along H over that along W."""
    return {
        "kind": "2d",
        "spacing": (stretch, 1.0),
        "periodic": periodic,
        "backend": backend,
        "orders": "paper",
        **more,
    }


@every_backend
@every_ring
@pytest.mark.parametrize("stretch", [0.5, 1.0, 2.3])
@pytest.mark.parametrize("orders", ["paper", "corners"])
def test_stretch_and_rings(backend: str, periodic: tuple[bool, bool], stretch: float, orders: str) -> None:
    inputs = random_inputs(2, 13, 17, channels=18, dstate=5, rank=2)
    assert_like_reference(inputs, 1e-11, **options(backend, stretch, periodic, orders=orders))


@every_backend
@every_ring
@pytest.mark.parametrize("order", ALL_EIGHT, ids=lambda order: f"order{order.code}")
def test_each_of_the_eight_orders(backend: str, periodic: tuple[bool, bool], order: ScanOrder) -> None:
    inputs = random_inputs(1, 5, 11, channels=3, dstate=4, K=1)
    assert_like_reference(inputs, 1e-11, **options(backend, 1.7, periodic, orders=(order,)))


@every_backend
@every_ring
@pytest.mark.parametrize("size", [(1, 1), (1, 37), (37, 1), (8, 8), (16, 9), (2, 2), (300, 3)])
def test_sizes(backend: str, periodic: tuple[bool, bool], size: tuple[int, int]) -> None:
    """Lines, one tile, several, and more points along a ring than the torch backend takes at once."""
    inputs = random_inputs(2, *size, channels=5, dstate=3, rank=1)
    assert_like_reference(inputs, 1e-11, **options(backend, 0.4, periodic))


@every_backend
@pytest.mark.parametrize("stretch", [1.0, 2.3])
@pytest.mark.parametrize("form", ["equation", "state", "input"])
@pytest.mark.parametrize("correction", ["none", "0011", "learnable"])
def test_corrections(backend: str, stretch: float, form: str, correction: str) -> None:
    inputs = random_inputs(1, 13, 9, channels=17, dstate=5, dtype=torch.float32)
    if correction == "none":
        inputs["R"] = None
    elif correction != "learnable":
        digits = torch.tensor([float(digit) for digit in correction])
        inputs["R"] = digits[:, None, None].expand_as(inputs["R"])
    assert_like_reference(inputs, FLOAT32, **options(backend, stretch, correction=form))


@every_backend
@every_ring
@pytest.mark.parametrize("stretch", [1.0, 0.5])
@pytest.mark.parametrize("rank", [None, 3])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, FLOAT32), (torch.bfloat16, 8e-3)])
def test_precisions(
    backend: str,
    periodic: tuple[bool, bool],
    stretch: float,
    rank: int | None,
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    inputs = random_inputs(2, 13, 17, channels=20, dstate=6, rank=rank, dtype=dtype)
    assert_like_reference(inputs, tolerance, **options(backend, stretch, periodic))


@every_backend
def test_long_memories_keep_their_digits(backend: str) -> None:
    """A ring that lets 0.9998 of a state through: 1 - p taken from p in float32 would be wrong by 3e-4."""
    inputs = random_inputs(1, 13, 17, channels=3, dstate=4, dtype=torch.float32)
    inputs["dt"], inputs["dt_bias"] = 0.1 * inputs["dt"], torch.full_like(inputs["dt_bias"], -11.5)
    assert_like_reference(inputs, FLOAT32, **options(backend, 0.5))


@every_backend
@every_ring
def test_gradcheck(backend: str, periodic: tuple[bool, bool]) -> None:
    inputs = random_inputs(height=3, width=2, channels=2, dstate=2, K=2, rank=1)
    names = list(inputs)

    def scan(*tensors: torch.Tensor) -> torch.Tensor:
        named: dict[str, Any] = dict(zip(names, tensors, strict=True))
        return geo_scan(**named, **options(backend, 1.6, periodic, orders=order_set("paper")[1:3]))

    assert torch.autograd.gradcheck(scan, [tensor.requires_grad_() for tensor in inputs.values()])


@every_backend
@pytest.mark.parametrize("stretch", [1.0, 2.3])
def test_a_plane_on_rings_commutes_with_shifts(backend: str, stretch: float) -> None:
    inputs = random_inputs(1, 11, 10, channels=6, dstate=3, dtype=torch.float32)
    shifted = {
        name: tensor.roll((4, 7), (1, 2)) if name in ("x", "dt", "B", "C") else tensor
        for name, tensor in inputs.items()
        if tensor is not None
    }
    y = geo_scan(**{"dt_weight": None, **inputs}, **options(backend, stretch))
    of_shifted = geo_scan(**{"dt_weight": None, **shifted}, **options(backend, stretch))
    torch.testing.assert_close(of_shifted, y.roll((4, 7), (1, 2)), rtol=1e-5, atol=1e-5)


@every_backend
@pytest.mark.parametrize("stretch", [1.0, 2.3])
def test_time_steps_of_any_size(backend: str, stretch: float) -> None:
    """Exponents beyond the quick exponential, and memories of a thousand times round the ring. The input of a tiny step
    is as tiny, so that the state is not."""
    inputs = random_inputs(1, 6, 7, channels=19, dstate=4, dtype=torch.float32)
    scale = torch.tensor([60.0, 12.0, 1.0, -8.0, -10.0, -12.0])
    inputs["dt"] = inputs["dt"].abs() * scale[:, None, None, None]
    found = scan_and_gradients(inputs, **options(backend, stretch))
    assert all(tensor.isfinite().all() for tensor in found.values())
    assert_like_reference(inputs, 1e-5, **options(backend, stretch))


@pytest.mark.parametrize("kind", ["1d", "2d"])
@pytest.mark.parametrize("exact_hold", [False, True], ids=["simple hold", "exact hold"])
@pytest.mark.parametrize("spacing", [(1.0, 1.0), (0.5, 0.5), (0.5, 2.3)], ids=str)
def test_cpu_gives_the_same_bits_for_any_number_of_threads(
    kind: str, exact_hold: bool, spacing: tuple[float, float]
) -> None:
    inputs = random_inputs(2, 20, 21, channels=70, dstate=8, rank=4, dtype=torch.float32)
    periodic = BOTH if kind == "2d" else (False, False)
    results = []
    for threads in (1, 2, 3, 2):
        torch.set_num_threads(threads)
        asked: dict[str, Any] = {"kind": kind, "spacing": spacing, "periodic": periodic, "exact_hold": exact_hold}
        results.append(scan_and_gradients(inputs, orders="paper", backend="cpu", **asked))
    for other in results[1:]:
        assert all(torch.equal(other[name], tensor) for name, tensor in results[0].items())


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_operator_has_the_shapes_that_it_promises(backend: str) -> None:
    """torch.library's own checks, with a grid where neither axis has the other's number of points."""
    inputs = random_inputs(2, 5, 9, dtype=torch.float32, rank=2)
    codes = [order.code for order in order_set("paper")]
    leaves = [tensor.requires_grad_() for tensor in inputs.values()]
    for rings in (1, 2, 3):
        settings = (codes, "2d", "state", backend)
        torch.library.opcheck(torch.ops.geomano_hpc.geo_scan.default, (*leaves, *settings, True, 0.5, rings))
        y, carries = torch.ops.geomano_hpc.geo_scan(*leaves, *settings, True, 0.5, rings)
        fixed = [tensor.detach() for tensor in leaves]
        arguments = (torch.ones_like(y), *fixed, carries.detach(), *settings, True, False, 0.5, rings)
        torch.library.opcheck(torch.ops.geomano_hpc.geo_scan_backward.default, arguments)
