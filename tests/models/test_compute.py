"""The same model computed otherwise: with less kept, checkpointed layers, compiled dense parts, autocast."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from geomano_hpc.config import ComputeConfig, ModelConfig
from geomano_hpc.data import Normaliser, Signature, Split
from geomano_hpc.errors import ConfigError
from geomano_hpc.models import build_model, geomano
from geomano_hpc.models.fno import FnoConfig
from geomano_hpc.models.geomano import GeomanoConfig
from geomano_hpc.models.parts import geomamba
from geomano_hpc.models.parts.stack import checkpoint_layers, compile_dense_parts
from geomano_hpc.models.transolver import TransolverConfig
from geomano_hpc.training.tasks import Task

MODELS: list[ModelConfig] = [
    GeomanoConfig(depth=3, embedding=8, dstate=2),
    GeomanoConfig(depth=3, embedding=16, dstate=2),  # the CPU kernel computes the dense parts, too
    TransolverConfig(depth=3, embedding=8, heads=2, slices=4),
]


def gradients(config: ModelConfig, compute: ComputeConfig) -> tuple[list[torch.Tensor], int]:
    """The gradients of a step, and how many numbers the forward kept for it."""
    torch.manual_seed(0)
    model = build_model(config, 1, 1, compute=compute)
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(torch.linspace(-1, 1, 2 * 6 * 7).view(2, 6, 7, 1)).square().sum()
    loss.backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None], sum(kept.values())


@pytest.mark.parametrize("config", MODELS, ids=lambda config: f"{config.name}-{config.embedding}")
def test_checkpointed_layers_give_the_same_gradients_and_keep_less(config: ModelConfig) -> None:
    plain, plain_kept = gradients(config, ComputeConfig())
    again, again_kept = gradients(config, ComputeConfig(activation_checkpointing=True))
    assert len(plain) == len(again) > 0
    assert all(torch.equal(one, other) for one, other in zip(plain, again, strict=True))
    assert again_kept < plain_kept / 2


class Products(TorchDispatchMode):
    """Counts the matrix products, forwards and backwards."""

    count = 0

    def __torch_dispatch__(self, function: Any, _types: Any, arguments: Any = (), options: Any = None) -> Any:
        self.count += function in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize("config", MODELS[:2], ids=lambda config: f"{config.embedding}")
def test_layer_keeps_less_and_repeats_no_matrix_product(config: ModelConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is cheap is computed again in the backward, to the same bits."""
    with Products() as products:
        again, again_kept = gradients(config, ComputeConfig())
    for part in (geomano, geomamba):
        monkeypatch.setattr(part, "keeping_inputs", lambda region, *inputs: region(*inputs))
    with Products() as plain_products:
        plain, plain_kept = gradients(config, ComputeConfig())
    assert all(torch.equal(one, other) for one, other in zip(plain, again, strict=True))
    assert products.count == plain_products.count
    assert again_kept < 0.75 * plain_kept


@pytest.mark.parametrize("config", MODELS, ids=lambda config: f"{config.name}-{config.embedding}")
@pytest.mark.slow
def test_compiled_dense_parts_compute_the_same_under_the_same_names(config: ModelConfig) -> None:
    torch.manual_seed(0)
    plain = build_model(config, 1, 1)
    compiled = build_model(config, 1, 1)
    compiled.load_state_dict(plain.state_dict())
    compile_dense_parts(compiled, backend="aot_eager")  # all but the code generation, which takes half a minute
    assert list(compiled.state_dict()) == list(plain.state_dict())
    x = torch.randn(2, 6, 7, 1)
    assert torch.allclose(compiled(x), plain(x), atol=1e-6)


def test_models_without_these_ways_refuse_them() -> None:
    fno = build_model(FnoConfig(depth=1, embedding=4, modes=2), 1, 1)
    with pytest.raises(ConfigError, match="FNO has no layer stack"):
        checkpoint_layers(fno)
    with pytest.raises(ConfigError, match="FNO names no dense parts"):
        compile_dense_parts(fno)


@pytest.mark.parametrize("config", MODELS, ids=lambda config: f"{config.name}-{config.embedding}")
def test_bfloat16_is_near_float32_and_its_loss_is_float32(config: ModelConfig) -> None:
    torch.manual_seed(0)
    model = build_model(config, 1, 1)
    field = torch.randn(4, 6, 7, 1)
    known = Signature("steady", ("a",), ("u",), Normaliser(0.0, 1.0), Normaliser(3.0, 1.0))
    split = Split(known, field, field + 3)
    losses = {}
    for precision in ("float32", "bfloat16"):
        loss = Task(split, 0.1, precision).loss_parts(model, torch.arange(4), torch.device("cpu")).total
        loss.backward()
        losses[precision] = loss
    assert losses["bfloat16"].dtype == torch.float32
    assert losses["bfloat16"].item() == pytest.approx(losses["float32"].item(), rel=0.02)
    assert losses["bfloat16"].item() != losses["float32"].item()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


def test_kernel_computes_the_dense_parts_as_torch_does() -> None:
    found = {}
    for backend in ("cpu", "torch"):
        config = GeomanoConfig(depth=2, embedding=32, dstate=2, correction="learnable", scan_backend=backend)
        torch.manual_seed(0)
        model = build_model(config, 1, 1)
        model(torch.linspace(-1, 1, 2 * 6 * 7).view(2, 6, 7, 1)).square().sum().backward()
        found[backend] = {name: parameter.grad for name, parameter in model.named_parameters()}
    for name, expected in found["torch"].items():
        torch.testing.assert_close(found["cpu"][name], expected, rtol=1e-3, atol=1e-5)


def test_forward_mode_is_an_error_and_never_a_wrong_number() -> None:
    """The operators before the scan let the derivative through to it."""
    model = build_model(GeomanoConfig(depth=1, embedding=16, dstate=2), 1, 1).requires_grad_(False)
    x = torch.randn(1, 5, 6, 1)
    with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
        torch.func.jvp(model, (x,), (x,))
