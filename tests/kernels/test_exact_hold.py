"""The exact zero-order hold of the appendix: Bbar = (exp(dt A) - 1) / A B in the place of dt B."""

from typing import Any

import pytest
import torch

from geomano_hpc.kernels import ScanOrder, geo_scan, order_set
from tests.support.scan_inputs import assert_like_reference, random_inputs, scan_and_gradients

FLOAT32 = 1e-5

every_backend = pytest.mark.parametrize("backend", ["cpu", "torch"])
both_kinds = pytest.mark.parametrize("kind", ["1d", "2d"])


def options(backend: str, kind: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "orders": "paper", "backend": backend, "exact_hold": True, **more}


def test_a_constant_input_is_held_exactly() -> None:
    """dh/dt = A h + B x with everything constant, after four steps of dt: h = (exp(4 dt A) - 1) / A B x."""
    inputs = random_inputs(height=1, width=1, channels=1, dstate=1, K=1)
    line = {n: t.expand(1, 1, 4, *t.shape[3:]) if n in ("x", "dt", "B", "C") else t for n, t in inputs.items()}
    y = geo_scan(**line, orders=(ScanOrder(),), kind="1d", exact_hold=True, backend="reference")[0, 0, -1, 0]
    dt = torch.nn.functional.softplus(inputs["dt"].squeeze() + inputs["dt_bias"].squeeze())
    A, B, C, D, R, x = (inputs[name].squeeze() for name in ("A", "B", "C", "D", "R", "x"))
    h, Bbar_x = ((torch.exp(steps * dt * A) - 1) / A * B * x for steps in (4, 1))
    torch.testing.assert_close(y, C * h - R * Bbar_x + D * x)


def test_small_steps_are_those_of_the_simple_hold() -> None:
    inputs = random_inputs(height=5, width=4)
    inputs["dt_bias"] = inputs["dt_bias"] - 16
    exact, simple = (geo_scan(**inputs, orders="paper", kind="2d", exact_hold=hold) for hold in (True, False))
    torch.testing.assert_close(exact, simple, rtol=1e-5, atol=1e-7)


@every_backend
@both_kinds
@pytest.mark.parametrize("form", ["none", "equation", "state", "input"])
@pytest.mark.parametrize("spacing", [(1.0, 1.0), (0.5, 2.3)], ids=["training's grid", "another grid"])
def test_corrections_and_spacings(backend: str, kind: str, form: str, spacing: tuple[float, float]) -> None:
    inputs = random_inputs(2, 13, 9, channels=18, dstate=5, rank=2)
    if form == "none":
        inputs["R"], form = None, "equation"
    assert_like_reference(inputs, 1e-11, **options(backend, kind, correction=form, spacing=spacing))


@every_backend
@pytest.mark.parametrize("periodic", [(True, True), (True, False), (False, True)])
def test_rings(backend: str, periodic: tuple[bool, bool]) -> None:
    inputs = random_inputs(1, 9, 10, channels=5, dstate=4)
    assert_like_reference(inputs, 1e-11, **options(backend, "2d", periodic=periodic, spacing=(0.7, 1.0)))


@every_backend
@both_kinds
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, FLOAT32), (torch.bfloat16, 8e-3)])
def test_precisions(backend: str, kind: str, dtype: torch.dtype, tolerance: float) -> None:
    inputs = random_inputs(2, 13, 17, channels=20, dstate=6, rank=3, dtype=dtype)
    assert_like_reference(inputs, tolerance, **options(backend, kind))


@every_backend
@both_kinds
def test_time_steps_of_any_size_keep_their_digits(backend: str, kind: str) -> None:
    """From 1e-7, where exp(dt A) - 1 of float32 has no digit left, to a state that forgets at once."""
    inputs = random_inputs(1, 6, 7, channels=19, dstate=4, dtype=torch.float32)
    scale = torch.tensor([60.0, 2.0, 0.5, -2.0, -8.0, -16.0])
    inputs["dt"] = inputs["dt"].abs() * scale[:, None, None, None]
    found = scan_and_gradients(inputs, **options(backend, kind))
    assert all(tensor.isfinite().all() for tensor in found.values())
    assert_like_reference(inputs, FLOAT32, **options(backend, kind))


@every_backend
@both_kinds
def test_gradcheck(backend: str, kind: str) -> None:
    inputs = random_inputs(height=3, width=2, channels=2, dstate=2, K=2, rank=1)
    names = list(inputs)

    def scan(*tensors: torch.Tensor) -> torch.Tensor:
        named: dict[str, Any] = dict(zip(names, tensors, strict=True))
        return geo_scan(**named, **options(backend, kind, spacing=(1.6, 0.8), orders=order_set("paper")[1:3]))

    assert torch.autograd.gradcheck(scan, [tensor.requires_grad_() for tensor in inputs.values()])
