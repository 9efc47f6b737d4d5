"""Every backend that computes on a CPU, forward and every gradient, against the float64 reference."""

import math
from typing import Any

import pytest
import torch

from geomano_hpc.errors import BackendError, ConfigError
from geomano_hpc.kernels import ScanOrder, backends, choose_backend, geo_scan, order_set
from geomano_hpc.kernels.cpu import extension as cpu_extension
from tests.support.scan_inputs import ALL_EIGHT, PAPER, assert_like_reference, random_inputs, scan_and_gradients

FLOAT32 = 1e-5  # reached: 2e-7 (y) to 2e-6 (sums over the grid)
BACKENDS = ["cpu", "torch"]

every_backend = pytest.mark.parametrize("backend", BACKENDS)
both_kinds = pytest.mark.parametrize("kind", ["1d", "2d"])


@every_backend
@both_kinds
@pytest.mark.parametrize("order", ALL_EIGHT, ids=lambda order: f"order{order.code}")
def test_each_of_the_eight_orders(backend: str, kind: str, order: ScanOrder) -> None:
    inputs = random_inputs(2, 5, 11, channels=18, dstate=4, K=1, rank=2)
    assert_like_reference(inputs, 1e-12, orders=(order,), kind=kind, backend=backend)


@every_backend
@both_kinds
@pytest.mark.parametrize("orders", [order_set("sequence"), PAPER, order_set("corners"), ALL_EIGHT])
def test_several_orders_are_merged(backend: str, kind: str, orders: tuple[ScanOrder, ...]) -> None:
    inputs = random_inputs(2, 9, 10, channels=5, dstate=3, K=len(orders), rank=2, dtype=torch.float32)
    assert_like_reference(inputs, FLOAT32, orders=orders, kind=kind, backend=backend)


@every_backend
@both_kinds
@pytest.mark.parametrize("form", ["equation", "state"])
@pytest.mark.parametrize("correction", ["none", "0001", "0011", "0111", "learnable"])
def test_corrections(backend: str, kind: str, form: str, correction: str) -> None:
    inputs = random_inputs(1, 6, 9, channels=17, dstate=5, dtype=torch.float32)
    if correction == "none":
        inputs["R"] = None
    elif correction != "learnable":
        digits = torch.tensor([float(digit) for digit in correction])
        inputs["R"] = digits[:, None, None].expand_as(inputs["R"])
    assert_like_reference(inputs, FLOAT32, orders=PAPER, kind=kind, correction=form, backend=backend)


@every_backend
@both_kinds
@pytest.mark.parametrize("size", [(1, 1), (1, 300), (300, 1), (7, 13), (63, 65), (85, 85)])
def test_odd_sizes(backend: str, kind: str, size: tuple[int, int]) -> None:
    """63 x 65 and 85 x 85 cross tiles and intervals of carries; the torch backend cuts 300 and more into chunks."""
    inputs = random_inputs(1, *size, channels=3, dstate=2, K=2, rank=2, dtype=torch.float32)
    inputs["dt_bias"] = inputs["dt_bias"] - 3  # long memories
    orders = (ScanOrder(column_major=True), ScanOrder(rows_backwards=True))
    assert_like_reference(inputs, FLOAT32, orders=orders, kind=kind, backend=backend)


@every_backend
@both_kinds
@pytest.mark.parametrize(("channels", "dstate"), [(1, 1), (16, 8), (31, 16), (33, 20), (2, 64)])
@pytest.mark.parametrize("rank", [None, 1, 9])
def test_channels_and_dstates_of_any_number(
    backend: str, kind: str, channels: int, dstate: int, rank: int | None
) -> None:
    """With 64 dstates the carries lie several tiles apart."""
    inputs = random_inputs(2, 9, 17, channels, dstate, K=4, rank=rank, dtype=torch.float32)
    assert_like_reference(inputs, FLOAT32, orders=PAPER, kind=kind, backend=backend)


@both_kinds
@pytest.mark.parametrize(
    ("backend", "dtype", "tolerance"),
    [
        ("cpu", torch.float64, 1e-12),
        ("cpu", torch.bfloat16, 8e-3),
        ("torch", torch.float64, 1e-12),
        ("torch", torch.bfloat16, 8e-3),
        ("torch", torch.float16, 1e-3),
        ("reference", torch.bfloat16, 8e-3),
    ],
)
def test_precisions_round_only_what_they_return(kind: str, backend: str, dtype: torch.dtype, tolerance: float) -> None:
    inputs = random_inputs(2, 9, 17, channels=20, dstate=6, rank=3, dtype=dtype)
    assert_like_reference(inputs, tolerance, orders=PAPER, kind=kind, backend=backend)
    found = scan_and_gradients(inputs, orders=PAPER, kind=kind, backend=backend)
    assert found["y"].dtype == found["x"].dtype == found["B"].dtype == dtype
    assert found["A"].dtype == inputs["A"].dtype


@every_backend
@both_kinds
def test_gradcheck(backend: str, kind: str) -> None:
    inputs = random_inputs(height=3, width=3, channels=2, dstate=2, K=2, rank=2)
    names = list(inputs)

    def scan(*tensors: torch.Tensor) -> torch.Tensor:
        named: dict[str, Any] = dict(zip(names, tensors, strict=True))
        return geo_scan(**named, orders=order_set("sequence"), kind=kind, backend=backend)

    assert torch.autograd.gradcheck(scan, [tensor.requires_grad_() for tensor in inputs.values()])


@every_backend
@both_kinds
def test_inputs_need_not_be_contiguous(backend: str, kind: str) -> None:
    """Parts of one projection, as the model hands them over, a transposed grid, and a broadcast gradient of y."""
    inputs = random_inputs(2, 6, 7, channels=5, dstate=3, rank=2, dtype=torch.float32)
    projection = torch.cat([inputs["dt"], inputs["B"], inputs["C"]], dim=-1)
    parts = dict(zip(("dt", "B", "C"), projection.split([2, 3, 3], dim=-1), strict=True))
    turned = {name: inputs[name].transpose(1, 2).contiguous().transpose(1, 2) for name in ("x", "dt")}
    strided = {"B": torch.stack([inputs["B"], inputs["B"]], dim=-1)[..., 0], "A": inputs["A"].mT.contiguous().mT}
    for changed in (parts, turned, strided):
        assert all(not tensor.is_contiguous() for tensor in changed.values())
        assert_like_reference({**inputs, **changed}, FLOAT32, orders=PAPER, kind=kind, backend=backend)

    leaf = inputs["x"].clone().requires_grad_()
    geo_scan(**{**inputs, "x": leaf}, orders=PAPER, kind=kind, backend=backend).sum().backward()
    expanded = leaf.grad
    leaf.grad = None
    y = geo_scan(**{**inputs, "x": leaf}, orders=PAPER, kind=kind, backend=backend)
    y.backward(torch.ones_like(y))
    assert torch.equal(expanded, leaf.grad)


@every_backend
@both_kinds
def test_strides_of_axes_of_length_one_mean_nothing(backend: str, kind: str) -> None:
    """A transposed 1 x L grid is contiguous for torch, with any stride on the axis of length 1."""
    inputs = random_inputs(1, 300, 1, channels=17, dstate=4, K=2, rank=2, dtype=torch.float32)
    for name in ("x", "dt", "B", "C"):
        inputs[name] = inputs[name].transpose(1, 2).clone(memory_format=torch.contiguous_format).transpose(1, 2)
        assert inputs[name].is_contiguous()
    assert inputs["x"].stride(2) == 17 * 300
    assert_like_reference(inputs, FLOAT32, orders=order_set("sequence"), kind=kind, backend=backend)


@every_backend
@both_kinds
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_time_steps_of_any_size_neither_overflow_nor_vanish(backend: str, kind: str, dtype: torch.dtype) -> None:
    """Large ones forget everything (exp underflows to 0), tiny ones nothing; -100 and below makes no step at all."""
    inputs = random_inputs(1, 6, 7, channels=19, dstate=4, dtype=dtype)
    scale = torch.tensor([1e4, 60.0, 12.0, -8.0, -30.0, -1e4], dtype=dtype)
    inputs["dt"] = inputs["dt"].abs() * scale[:, None, None, None]
    found = scan_and_gradients(inputs, orders=PAPER, kind=kind, backend=backend)
    assert all(tensor.isfinite().all() for tensor in found.values())
    assert_like_reference(inputs, 1e-5, orders=PAPER, kind=kind, backend=backend)


@every_backend
@both_kinds
@pytest.mark.parametrize("name", ["x", "dt", "A", "B", "C", "D", "R", "dt_bias", "dt_weight"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nan_in_gives_nan_out(backend: str, kind: str, name: str, value: float) -> None:
    """A kernel that loses a NaN hides a diverged run. Judged in float64: what torch's float32 functions make of an
    infinity is up to the CPU."""
    inputs = random_inputs(1, 9, 9, channels=17, dstate=4, rank=2, dtype=torch.float32)
    inputs[name].view(-1)[0] = value
    y = geo_scan(**inputs, orders=PAPER, kind=kind, backend=backend)
    exact = {key: tensor.double() for key, tensor in inputs.items()}
    expected = geo_scan(**exact, orders=PAPER, kind=kind, backend="reference")
    lost = y.isfinite() & ~expected.isfinite()
    assert not lost.any()
    spread = expected.isfinite() & ~y.isfinite()  # Abar of the first point meets no state before it in the reference
    assert not spread.any() or (name == "A" and not spread[..., 1:].any())
    if math.isnan(value):
        assert y.isnan().any()


@every_backend
@both_kinds
def test_every_output_is_written(backend: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that is allocated empty is filled with NaN: none of it may be left."""
    inputs = random_inputs(2, 9, 10, channels=17, dstate=5, rank=2, dtype=torch.float32)
    expected = scan_and_gradients(inputs, orders=PAPER, kind=kind, backend=backend)
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, _poisoned(getattr(owner, name)))
    found = scan_and_gradients(inputs, orders=PAPER, kind=kind, backend=backend)
    assert torch.empty(1).isnan()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor)


def _poisoned(allocate: Any) -> Any:
    def poisoned(*arguments: Any, **named: Any) -> torch.Tensor:
        tensor: torch.Tensor = allocate(*arguments, **named)
        return tensor.fill_(math.nan) if tensor.is_floating_point() else tensor

    return poisoned


@both_kinds
def test_cpu_gives_the_same_bits_for_any_number_of_threads(kind: str) -> None:
    inputs = random_inputs(2, 20, 21, channels=70, dstate=8, rank=4, dtype=torch.float32)
    results = []
    for threads in (1, 2, 3, 2):
        torch.set_num_threads(threads)
        results.append(scan_and_gradients(inputs, orders=PAPER, kind=kind, backend="cpu"))
    for other in results[1:]:
        assert all(torch.equal(other[name], tensor) for name, tensor in results[0].items())


def test_cpu_kernel_leaves_denormal_numbers_to_others() -> None:
    scan_and_gradients(random_inputs(dtype=torch.float32), orders=PAPER, kind="2d", backend="cpu")
    assert (torch.tensor(1e-40) * torch.tensor(0.5)).item() > 0


@every_backend
def test_forward_mode_is_an_error_and_never_a_zero(backend: str) -> None:
    inputs = random_inputs()
    with pytest.raises(NotImplementedError, match="no forward-mode derivative; take 'reference'"):
        torch.func.jvp(
            lambda x: geo_scan(**{**inputs, "x": x}, orders=PAPER, kind="1d", backend=backend),
            (inputs["x"],),
            (inputs["x"],),
        )


@every_backend
def test_gradients_are_computed_for_what_needs_them(backend: str) -> None:
    """A fixed correction is no parameter, and a frozen input gets no gradient."""
    inputs = random_inputs(dtype=torch.float32)
    x, A = inputs["x"].clone().requires_grad_(), inputs["A"].clone().requires_grad_()
    geo_scan(**{**inputs, "x": x, "A": A}, orders=PAPER, kind="1d", backend=backend).sum().backward()
    expected = scan_and_gradients(inputs, orders=PAPER, kind="1d", backend=backend)
    assert inputs["R"].grad is None
    assert x.grad is not None
    assert A.grad is not None
    weights = torch.ones_like(expected["y"])
    again = geo_scan(**{**inputs, "x": x, "A": A}, orders=PAPER, kind="1d", backend="reference")
    torch.testing.assert_close(x.grad, torch.autograd.grad(again, x, weights)[0])


def test_precision_that_a_backend_lacks_is_an_error() -> None:
    with pytest.raises(BackendError, match=r"'cpu' computes float32, float64, bfloat16, not torch\.float16"):
        geo_scan(**random_inputs(dtype=torch.float16), orders=PAPER, kind="2d", backend="cpu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"B": torch.zeros(1, 3, 4, 4, 3)}, r"B is torch\.float32, x is torch\.float64; give them one precision"),
        ({"orders": (ScanOrder(),) * 9}, "9 scan orders, expected 1 to 8"),
        ({"orders": ()}, "0 scan orders, expected 1 to 8"),
        ({"x": torch.zeros(0, 3, 4, 2)}, "batch is 0, expected at least 1"),
        ({"dt_weight": torch.zeros(4, 2, 0)}, "rank of dt is 0, expected at least 1"),
        ({"A": torch.zeros(4, 2, 0)}, "N is 0, expected at least 1"),
    ],
)
def test_what_does_not_fit_together_is_named(change: dict[str, Any], message: str) -> None:
    arguments = {**random_inputs(), "orders": PAPER, "kind": "2d", **change}
    with pytest.raises(ValueError, match=message):
        geo_scan(**arguments)


def test_backend_that_is_not_there_is_an_error_and_never_another_backend() -> None:
    with pytest.raises(BackendError, match="'triton' is not available: needs a GPU"):
        geo_scan(**random_inputs(), orders=PAPER, kind="2d", backend="triton")
    with pytest.raises(ConfigError, match="unknown scan backend 'cuda'"):
        geo_scan(**random_inputs(), orders=PAPER, kind="2d", backend="cuda")
    with pytest.raises(BackendError, match="'cpu' is not available: computes on the CPU only"):
        choose_backend("cpu", "cuda")


def test_auto_takes_triton_on_a_gpu_then_cpu_then_torch_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="geomano_hpc")
    backends._choose.cache_clear()
    assert choose_backend("auto", "cuda") == "triton"
    assert choose_backend("auto", "cpu") == "cpu"
    assert choose_backend("auto", "cpu") == "cpu"
    assert len(caplog.messages) == 2  # once each
    backends._choose.cache_clear()
    monkeypatch.setattr(cpu_extension, "unavailable_because", lambda: "no compiler")
    assert choose_backend("auto", "cpu") == "torch"
    assert "scan backend: torch (plain torch in chunks" in caplog.text
    with pytest.raises(BackendError, match="'cpu' is not available: no compiler"):
        choose_backend("cpu", "cpu")
    backends._choose.cache_clear()


@every_backend
def test_expansions_printed_in_the_paper(backend: str) -> None:
    """3 x 3 grid, constant Abar and Bbar. "Theoretical Insights": h_4 of the four directions; appendix "Geometric
    Consistency": x_{1,1} reaches x_{3,3} with A^8 in 1D and with A^4 in 2D."""
    exponents_of_h4 = [
        {0: 4, 1: 3, 2: 2, 3: 1, 4: 0},
        {8: 4, 7: 3, 6: 2, 5: 1, 4: 0},
        {0: 4, 3: 3, 6: 2, 1: 1, 4: 0},
        {8: 4, 5: 3, 2: 2, 7: 1, 4: 0},
    ]
    a, delta = 0.5, 1.0
    ones = torch.ones(1, 3, 3, 1, 1, dtype=torch.float64)
    constant = {
        "dt": ones * math.log(math.expm1(delta)),  # softplus of it is delta
        "A": torch.full((1, 1, 1), math.log(a) / delta, dtype=torch.float64),
        "B": ones,
        "C": ones,
        "D": torch.zeros(1, 1, dtype=torch.float64),
        "R": None,
        "dt_bias": torch.zeros(1, 1, dtype=torch.float64),
    }

    def reached(source: int, order: ScanOrder, kind: str) -> torch.Tensor:
        x = torch.zeros(1, 3, 3, 1, dtype=torch.float64)
        x.view(-1)[source] = 1.0
        return geo_scan(x, **constant, orders=(order,), kind=kind, backend=backend).flatten()  # type: ignore[arg-type]

    for order, exponents in zip(PAPER, exponents_of_h4, strict=True):
        for source in range(9):
            expected = a ** exponents[source] if source in exponents else 0.0
            assert reached(source, order, "1d")[4].item() == pytest.approx(expected)
    assert reached(0, PAPER[0], "1d")[8].item() == pytest.approx(a**8)
    assert reached(0, PAPER[0], "2d")[8].item() == pytest.approx(a**4)
