"""The spectral branch by products with waves, against fast transforms of the whole grid."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from geomano_hpc.bench.kernels.gate_and_modes import by_fast_transforms
from geomano_hpc.models.parts import spectral
from geomano_hpc.models.parts.spectral import SpectralBranch

# Odd and even sizes, lines, a point, and grids too coarse for the modes.
GRIDS = [
    (8, 12, 3),
    (9, 7, 4),
    (9, 7, 12),
    (6, 5, 6),
    (1, 8, 3),
    (7, 1, 3),
    (16, 16, 8),
    (2, 2, 2),
    (1, 1, 3),
    (8, 9, 1),
]


@pytest.fixture(autouse=True)
def _nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectral, "_KEPT", {})


def branch_and_field(h: int, w: int, modes: int) -> tuple[SpectralBranch, torch.Tensor]:
    torch.manual_seed(0)
    return SpectralBranch(4, modes).double(), torch.randn(3, h, w, 4, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize(("h", "w", "modes"), GRIDS)
def test_value_and_gradients_are_those_of_fast_transforms(h: int, w: int, modes: int) -> None:
    branch, x = branch_and_field(h, w, modes)
    direction = torch.randn_like(x)
    (y, *found), (right, *expected) = (
        (value, *torch.autograd.grad(value, [x, branch.weights], direction))
        for value in (branch(x), by_fast_transforms(branch, x))
    )
    torch.testing.assert_close(y, right, rtol=0, atol=1e-14)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_transforms_are_in_float32_under_autocast_too(dtype: torch.dtype) -> None:
    branch, x = branch_and_field(16, 20, 4)
    given, right = x.detach().to(dtype), by_fast_transforms(branch, x.detach().to(dtype).double())
    branch = branch.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = branch(given)
    assert y.dtype == dtype
    off = (y.double() - right).abs().max() / right.abs().max()
    assert off < (1e-6 if dtype == torch.float32 else 2**-8)


def test_a_field_in_any_memory_order_is_taken() -> None:
    branch, x = branch_and_field(5, 6, 3)
    turned = x.detach().transpose(1, 2).contiguous().transpose(1, 2)
    torch.testing.assert_close(branch(turned), branch(x), rtol=0, atol=1e-15)


def test_the_backward_keeps_the_modes_and_not_the_field() -> None:
    branch, x = branch_and_field(64, 64, 4)
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        branch(x)
    assert 0 < sum(kept.values()) < 0.2 * x.nbytes


def test_waves_are_made_once_for_a_grid_a_precision_and_a_device() -> None:
    branch, x = branch_and_field(6, 8, 3)
    with torch.inference_mode():
        branch(x)
    first = dict(spectral._KEPT)
    branch(x).sum().backward()  # what an inference left behind serves a training
    assert branch.weights.grad is not None
    assert all(spectral._KEPT[key] is waves for key, waves in first.items())
    assert len(first) == len(spectral._KEPT) == 2
    branch(x[:, :5])
    assert len(spectral._KEPT) == 3
    branch.float()(x.float())
    assert len(spectral._KEPT) == 5


class Onlooker(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, _types: Any, arguments: Any = (), options: Any = None) -> Any:
        return function(*arguments, **(options or {}))


def test_nothing_is_kept_that_belongs_to_a_transform() -> None:
    branch, x = branch_and_field(6, 8, 3)
    values = x.detach()
    expected = torch.func.grad(lambda field: by_fast_transforms(branch, field).square().sum())(values)
    torch.testing.assert_close(torch.func.grad(lambda field: branch(field).square().sum())(values), expected)
    with Onlooker():
        branch(values)
    assert spectral._KEPT == {}
    branch(values)
    torch.testing.assert_close(torch.func.grad(lambda field: branch(field).square().sum())(values), expected)


@pytest.mark.slow
def test_a_compiler_traces_it_whole() -> None:
    branch, x = branch_and_field(12, 10, 4)
    torch.testing.assert_close(torch.compile(branch, backend="eager", fullgraph=True)(x), branch(x))
    assert spectral._KEPT


@pytest.mark.slow(15)
@pytest.mark.filterwarnings("ignore")
def test_exported_for_any_grid_in_both_formats(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    branch, x = branch_and_field(12, 10, 4)
    branch, x = branch.float().requires_grad_(False), x.detach().float()
    free = {0: torch.export.Dim("batch"), 1: torch.export.Dim("H", min=2), 2: torch.export.Dim("W", min=2)}
    program = torch.export.export(branch, (x,), dynamic_shapes=(free,))
    torch.export.save(program, tmp_path / "branch.pt2")
    exported = torch.export.load(tmp_path / "branch.pt2").module()
    written = torch.onnx.export(program, dynamo=True, verbose=False)
    assert written is not None
    written.save(str(tmp_path / "branch.onnx"))
    session = runtime.InferenceSession(str(tmp_path / "branch.onnx"))
    for h, w in ((12, 10), (5, 7), (3, 2), (20, 31)):  # coarser ones hold fewer modes
        field = torch.randn(2, h, w, 4)
        torch.testing.assert_close(exported(field), branch(field))
        (found,) = session.run(None, {session.get_inputs()[0].name: field.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), branch(field))
