"""The C++ kernel with every kind of vectors that this machine can run, and the variable that chooses one.

What test_backends.py and test_dense.py say of the machine's own vectors is said of the others here, in short. They are
compiled without optimisation, which takes seconds, and stay in the user's cache until their sources change.
"""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from geomano_hpc.errors import BackendError
from geomano_hpc.kernels import (
    backend_statuses,
    backends,
    choose_backend,
    conv_silu,
    depthwise_conv,
    gate,
    gelu,
    geo_scan,
    norm_gate,
)
from geomano_hpc.kernels.cpu import capability as cpu_capability
from geomano_hpc.kernels.cpu import extension as cpu_extension
from geomano_hpc.kernels.cpu.capability import VARIABLE, chosen, runnable
from tests.support.scan_inputs import ALL_EIGHT, PAPER, assert_like_reference, random_inputs

both_kinds = pytest.mark.parametrize("kind", ["1d", "2d"])


OWN = cpu_capability._of_torch()


@pytest.fixture(params=[pytest.param(one, marks=() if one == OWN else pytest.mark.compile) for one in runnable()])
def vectors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One after the other; what torch itself takes is tested as users run it."""
    if request.param != OWN:
        monkeypatch.setattr(cpu_extension, "OPTIMISATION", "-O0")
    monkeypatch.setenv(VARIABLE, request.param)
    assert f"-{request.param.upper()}-" in cpu_extension.load_library()._name
    return str(request.param)


@both_kinds
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12), (torch.bfloat16, 8e-3)], ids=str
)
def test_scan_and_every_gradient_in_every_precision(
    vectors: str, kind: str, dtype: torch.dtype, tolerance: float
) -> None:
    inputs = random_inputs(2, 9, 11, channels=20, dstate=6, K=8, rank=3, dtype=dtype)
    assert_like_reference(inputs, tolerance, orders=ALL_EIGHT, kind=kind, backend="cpu")


@both_kinds
@pytest.mark.parametrize("form", ["equation", "state"])
@pytest.mark.parametrize(("size", "channels", "dstate"), [((1, 1), 1, 1), ((1, 70), 33, 5), ((37, 35), 3, 2)])
def test_scans_of_odd_sizes(
    vectors: str, kind: str, form: str, size: tuple[int, int], channels: int, dstate: int
) -> None:
    inputs = random_inputs(1, *size, channels=channels, dstate=dstate, dtype=torch.float32)
    assert_like_reference(inputs, 1e-5, orders=PAPER, kind=kind, correction=form, backend="cpu")


@both_kinds
@pytest.mark.parametrize("exact_hold", [False, True], ids=["simple hold", "exact hold"])
@pytest.mark.parametrize("spacing", [(1.0, 1.0), (0.5, 0.5), (0.5, 2.3)], ids=str)
def test_other_grids_and_the_exact_hold(
    vectors: str, kind: str, exact_hold: bool, spacing: tuple[float, float]
) -> None:
    inputs = random_inputs(1, 9, 11, channels=20, dstate=6, rank=3, dtype=torch.float32)
    options: dict[str, Any] = {"kind": kind, "spacing": spacing, "exact_hold": exact_hold}
    assert_like_reference(inputs, 1e-5, orders=PAPER, backend="cpu", **options)


@pytest.mark.parametrize("exact_hold", [False, True], ids=["simple hold", "exact hold"])
def test_rings_of_another_grid(vectors: str, exact_hold: bool) -> None:
    inputs = random_inputs(1, 9, 11, channels=20, dstate=6, rank=3, dtype=torch.float32)
    options: dict[str, Any] = {"spacing": (0.5, 2.3), "exact_hold": exact_hold, "backend": "cpu"}
    for periodic in ((True, True), (True, False), (False, True)):
        assert_like_reference(inputs, 1e-5, orders=PAPER, kind="2d", periodic=periodic, **options)


@both_kinds
@pytest.mark.parametrize("exact_hold", [False, True], ids=["simple hold", "exact hold"])
def test_time_steps_of_any_size(vectors: str, kind: str, exact_hold: bool) -> None:
    inputs = random_inputs(1, 6, 7, channels=19, dstate=4, dtype=torch.float32)
    scale = torch.tensor([1e4, 60.0, 12.0, -8.0, -30.0, -1e4])
    inputs["dt"] = inputs["dt"].abs() * scale[:, None, None, None]
    assert_like_reference(inputs, 1e-5, orders=PAPER, kind=kind, exact_hold=exact_hold, backend="cpu")


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-11), (torch.bfloat16, 8e-3)], ids=str
)
@pytest.mark.parametrize("stretch", [1.0, 2.3])
def test_scan_on_rings(vectors: str, dtype: torch.dtype, tolerance: float, stretch: float) -> None:
    inputs = random_inputs(2, 9, 11, channels=20, dstate=6, rank=3, dtype=dtype)
    geometry: dict[str, Any] = {"stretch": stretch, "periodic": (True, True)}
    assert_like_reference(inputs, tolerance, orders=PAPER, kind="2d", **geometry, backend="cpu")


@both_kinds
@pytest.mark.parametrize("name", ["x", "dt", "A", "B", "C", "D", "R", "dt_bias"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_scan_loses_nothing_that_is_not_finite(vectors: str, kind: str, name: str, value: float) -> None:
    inputs = random_inputs(1, 5, 6, channels=17, dstate=4, dtype=torch.float32)
    inputs[name].view(-1)[0] = value
    y = geo_scan(**inputs, orders=PAPER, kind=kind, backend="cpu")
    exact: dict[str, Any] = {key: None if tensor is None else tensor.double() for key, tensor in inputs.items()}
    expected = geo_scan(**exact, orders=PAPER, kind=kind, backend="reference")
    assert not (y.isfinite() & ~expected.isfinite()).any()


def value_and_slope(values: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    return [values.detach().double(), torch.autograd.grad(values.sum(), x)[0].double()]


@pytest.mark.parametrize("shape", [(2, 7, 13, 32), (1, 1, 1, 16), (1, 2, 9, 48)])
def test_dense_parts_and_their_gradients(vectors: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    E = shape[-1]
    x, z, kernel, bias = 3 * torch.randn(shape), torch.randn(shape), torch.randn(E, 1, 3, 3), torch.randn(E)
    leaf, exact = x.clone().requires_grad_(), x.double().requires_grad_()
    grid = exact.movedim(-1, 1)
    convolved = F.silu(F.conv2d(grid, kernel.double(), bias.double(), padding=1, groups=E).movedim(1, -1))
    larger = torch.randn(E, 1, 7, 9) / 8
    wide = F.gelu(F.conv2d(grid, larger.double(), bias.double(), padding=(3, 4), groups=E).movedim(1, -1))
    norm = F.layer_norm(exact, (E,), bias.double(), bias.double(), 1e-5)
    pairs = (
        (depthwise_conv(leaf, larger, bias, "gelu", backend="cpu"), wide),
        (conv_silu(leaf, kernel, bias, "cpu"), convolved),
        (norm_gate(leaf, z, bias, bias, 1e-5, "cpu"), F.silu(norm) * F.silu(z.double())),
        (gate(z, leaf, "cpu"), z.double() * F.silu(exact)),
        (gelu(leaf, "cpu"), F.gelu(exact)),
    )
    for fused, plain in pairs:
        for found, right in zip(value_and_slope(fused, leaf), value_and_slope(plain, exact), strict=True):
            assert (found - right).abs().max() < 3e-6 * right.abs().max().clamp(min=1)


@pytest.mark.parametrize("far", [1e4, 3e38, math.nan, math.inf, -math.inf])
def test_dense_parts_far_out(vectors: str, far: float) -> None:
    x = torch.full((4, 16), far).requires_grad_()
    exact = x.detach().double().requires_grad_()
    found, expected = value_and_slope(gelu(x, "cpu"), x), value_and_slope(F.gelu(exact), exact)
    for one, right in zip(found, expected, strict=True):
        assert torch.allclose(one, right, rtol=1e-6, equal_nan=True)


def test_the_one_in_use_is_said_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "default")
    status = next(one for one in backend_statuses("cpu") if one.name == "cpu")
    assert "C++ with default vectors (GEOMANO_CPU_CAPABILITY is set)" in status.reason
    monkeypatch.delenv(VARIABLE)
    assert f"with {chosen().name} vectors (torch's choice for this machine)" in cpu_extension.describe()


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("avx1024", "GEOMANO_CPU_CAPABILITY is 'avx1024'; choose from default, avx2, avx512, or unset it"),
        ("avx512", "GEOMANO_CPU_CAPABILITY is 'avx512', but this machine can run default, avx2 only"),
    ],
)
def test_wrong_word_and_vectors_that_the_machine_lacks_are_an_error_before_anything_runs(
    word: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_capability, "runnable", lambda: ("default", "avx2"))
    monkeypatch.setattr(cpu_capability, "_chosen", cpu_capability._chosen.__wrapped__)  # which remembers nothing
    monkeypatch.setenv(VARIABLE, word)
    backends._choose.cache_clear()
    for ask in (cpu_extension.load_library, lambda: choose_backend("auto", "cpu"), cpu_extension.describe):
        with pytest.raises(BackendError) as caught:
            ask()
        assert str(caught.value) == message
