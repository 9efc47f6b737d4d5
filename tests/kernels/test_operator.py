"""The scan as an operator of torch: torch.library's own checks, torch.compile, torch.export, autocast."""

import pytest
import torch

from geomano_hpc.kernels import geo_scan
from geomano_hpc.models.parts.geomamba import GeoMambaKernel
from tests.support.scan_inputs import PAPER, random_inputs, scan_and_gradients

CODES = [order.code for order in PAPER]


def operator_calls(graph: torch.fx.Graph) -> list[str]:
    return [str(node.target) for node in graph.nodes if "geomano_hpc" in str(node.target)]


@pytest.mark.parametrize("backend", ["cpu", "torch"])
@pytest.mark.parametrize("kind", ["1d", "2d"])
@pytest.mark.parametrize("given", ["everything", "neither R nor dt_weight"])
@pytest.mark.slow
def test_opcheck(backend: str, kind: str, given: str) -> None:
    """Schema, autograd registration, fake kernel and AOT dispatch, of the forward and of the backward."""
    everything = given == "everything"
    inputs = random_inputs(dtype=torch.float32, rank=2 if everything else None)
    if not everything:
        inputs["R"] = None
    leaves = [None if tensor is None else tensor.requires_grad_() for tensor in inputs.values()]
    torch.library.opcheck(torch.ops.geomano_hpc.geo_scan.default, (*leaves, CODES, kind, "state", backend, True))
    y, carries = torch.ops.geomano_hpc.geo_scan(*leaves, CODES, kind, "state", backend, True)
    fixed = [None if tensor is None else tensor.detach() for tensor in leaves]
    arguments = (torch.ones_like(y), *fixed, carries.detach(), CODES, kind, "state", backend, everything)
    torch.library.opcheck(torch.ops.geomano_hpc.geo_scan_backward.default, arguments)


@pytest.mark.slow
def test_compile_takes_the_scan_as_one_node_without_a_graph_break() -> None:
    kernel = GeoMambaKernel(8, dstate=2, correction="learnable")
    x = torch.randn(1, 5, 6, 8)
    graphs: list[torch.fx.Graph] = []

    def keep_graph(module: torch.fx.GraphModule, _: list[torch.Tensor]) -> torch.fx.GraphModule:
        graphs.append(module.graph)
        return module

    compiled = torch.compile(kernel, fullgraph=True, backend=keep_graph)
    torch.testing.assert_close(compiled(x), kernel(x))
    assert [len(operator_calls(graph)) for graph in graphs] == [1]

    through_aot = torch.compile(kernel, fullgraph=True, backend="aot_eager")
    through_aot(x).square().sum().backward()
    found = {name: parameter.grad for name, parameter in kernel.named_parameters()}
    kernel.zero_grad()
    kernel(x).square().sum().backward()
    for name, parameter in kernel.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad)


def test_export_takes_the_scan_as_one_node() -> None:
    kernel = GeoMambaKernel(8, dstate=2)
    x = torch.randn(1, 5, 6, 8)
    program = torch.export.export(kernel, (x,))
    assert operator_calls(program.graph) == ["geomano_hpc.geo_scan.default"]
    assert torch.equal(program.module()(x), kernel(x))


@pytest.mark.parametrize("backend", ["cpu", "torch", "reference"])
def test_autocast_rounds_activations_and_keeps_parameters_in_float32(backend: str) -> None:
    inputs = random_inputs(2, 5, 6, channels=9, rank=2, dtype=torch.float32)
    rounded = {name: t.bfloat16() if name in ("x", "dt", "B", "C") else t for name, t in inputs.items()}
    expected = scan_and_gradients(rounded, orders=PAPER, kind="2d", backend=backend)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = scan_and_gradients(inputs, orders=PAPER, kind="2d", backend=backend)
    assert found["y"].dtype == torch.bfloat16
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, check_dtype=False, rtol=2e-2, atol=1e-2)
    assert found["A"].dtype == torch.float32


def test_autocast_rule_of_the_operator_itself() -> None:
    """Whoever calls torch.ops directly, with mixed precisions, gets the same rule."""
    inputs = random_inputs(dtype=torch.float32, rank=2)
    inputs["B"] = inputs["B"].bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, _ = torch.ops.geomano_hpc.geo_scan(*inputs.values(), CODES, "2d", "equation", "cpu", False)
        expected = geo_scan(**inputs, orders=PAPER, kind="2d", backend="cpu")
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, expected)


def test_autocast_leaves_float64_alone() -> None:
    inputs = random_inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert geo_scan(**inputs, orders=PAPER, kind="2d", backend="cpu").dtype == torch.float64
        y, _ = torch.ops.geomano_hpc.geo_scan(*inputs.values(), CODES, "2d", "equation", "cpu", False)
    assert y.dtype == torch.float64


def test_backward_refuses_carries_of_another_scan() -> None:
    tensors = list(random_inputs(dtype=torch.float32).values())
    with pytest.raises(ValueError, match="7 carries, expected"):
        torch.ops.geomano_hpc.geo_scan_backward(
            tensors[0], *tensors, torch.zeros(7), CODES, "1d", "equation", "cpu", True
        )
    needs_gradients = [tensor if tensor is None else tensor.requires_grad_() for tensor in tensors]
    with pytest.raises(ValueError, match="must keep its carries"):
        torch.ops.geomano_hpc.geo_scan(*needs_gradients, CODES, "1d", "equation", "cpu", False)


def test_carries_are_kept_only_for_a_backward() -> None:
    inputs = random_inputs(dtype=torch.float32)
    sizes = [
        torch.ops.geomano_hpc.geo_scan(*inputs.values(), CODES, "1d", "equation", "cpu", keep)[1].numel()
        for keep in (False, True)
    ]
    assert sizes[0] == 0
    assert sizes[1] > 0
