"""How many kernels a GeoMaNO layer starts on a GPU, and that the host never waits for one inside a step.

By part, as counted below:

    forward                             1d  2d
      pre-norm, in projection            2   2
      convolution, scan projection       2   2
      A = -exp(A_log)                    1   1
      scan                               3   2
      norm and gate, out projection      2   2
      residual                           1   1
      pre-norm, MLP with GELU, residual  5   5
                                        16  15
    backward, with what is computed again
      narrow: GELU again, three of the linear layer; GELU's gradient                 5   5
      widen: norm again, three of the linear layer; norm's gradient, two; residual   7   7
      out projection: norm and gate again, three; gradient of norm and gate, two     6   6
      scan                                                                           3   4
      A_log                                                                          1   1
      scan projection: convolution again, two; x has two gradients: their sum        4   4
      convolution, two; z has two gradients: their sum                               3   3
      in projection: norm again, three; norm's gradient, two; residual               7   7
                                                                                    36  37

A linear layer has three launches in the backward: the gradients of input, weight and bias.
"""

from collections import Counter

import pytest
import torch

from geomano_hpc.bench import recipes
from geomano_hpc.data import Batch, Normaliser, Signature, Split
from geomano_hpc.kernels.audit.launches import LaunchCounter
from geomano_hpc.models import build_model
from geomano_hpc.models.geomano import GeomanoConfig, GeoMaNOLayer
from geomano_hpc.training.tasks import Task

pytest.importorskip("triton")
FORWARD, BACKWARD = 16, 40


def layer_of(name: str, **changes: object) -> tuple[GeoMaNOLayer, torch.Tensor]:
    config, size = recipes.recipe(name).model, recipes.size(name)
    assert isinstance(config, GeomanoConfig)
    config = config.model_copy(update=changes)
    with torch.device("meta"):
        layer = GeoMaNOLayer(config)
        # Not a leaf, as what comes from the layer before: it gathers gradients.
        z = torch.empty(size.batch, *size.grid, config.embedding, requires_grad=True).clone()
    return layer, z


@pytest.mark.parametrize(("name", "forward", "backward"), [("navier_stokes", 16, 36), ("darcy", 15, 37)])
def test_launches_of_a_layer(name: str, forward: int, backward: int) -> None:
    layer, z = layer_of(name)
    with LaunchCounter() as forth:
        out = layer(z)
    with LaunchCounter() as back:
        torch.autograd.grad(out, [z, *layer.parameters()], torch.empty_like(out))
    with torch.no_grad(), LaunchCounter() as inference:
        layer(z)
    assert len(forth.launches) == len(inference.launches) == forward <= FORWARD, forth.launches
    assert len(back.launches) == backward <= BACKWARD, back.launches
    counts = Counter(forth.launches + back.launches)
    assert counts["layer_norm_kernel"] == 4  # each again
    assert counts["conv_silu_kernel"] == counts["norm_gate_kernel"] == counts["gelu_kernel"] == 2
    assert counts["sum_parts_kernel"] == 4
    assert "cat" not in counts  # the gradient of dt, B and C is one tensor


def counted(**changes: object) -> tuple[list[str], list[str]]:
    """Forward and backward of a layer of darcy with other keys."""
    layer, z = layer_of("darcy", **changes)
    layer(z)  # what is made once for a grid is made
    with LaunchCounter() as forth:
        out = layer(z)
    with LaunchCounter() as back:
        torch.autograd.grad(out, [z, *layer.parameters()], torch.empty_like(out))
    return forth.launches, back.launches


def test_a_product_in_the_place_of_norm_and_gate_is_one_kernel_each_way() -> None:
    forth, back = counted(way_out="product")
    assert (len(forth), len(back)) == (15, 36)  # no sums for a norm's weight and bias
    assert forth.count("gate_kernel") == back.count("gate_kernel") == back.count("gate_backward_kernel") == 1


def test_launches_of_a_spectral_branch() -> None:
    """Four products, what arranges the weights, and the sum with the scan's result."""
    (forth, back), (forth_without, back_without) = counted(spectral_modes=4), counted()
    assert Counter(forth) - Counter(forth_without) == Counter(bmm=4, mul=1, flip=1, cat=1, stack=1, clone=1, add=1)
    more = Counter(back) - Counter(back_without)
    assert more["bmm"] == 4
    assert more.total() <= 15


def test_gradients_that_stay_in_the_parameters_take_no_more() -> None:
    layer, z = layer_of("darcy")
    out = layer(z)
    with LaunchCounter() as back:
        out.backward(torch.empty_like(out))
    assert all(parameter.grad is not None for parameter in layer.parameters())
    assert len(back.launches) <= BACKWARD


@pytest.mark.parametrize("name", ["darcy", "navier_stokes"])
def test_the_host_waits_for_nothing_inside_a_step(name: str) -> None:
    """Forward, loss and backward of the recipe, on a grid that tells as much: on meta tensors a number would be an
    error, and what else makes the host wait is noted."""
    recipe, size = recipes.recipe(name), recipes.size(name)
    assert isinstance(recipe.model, GeomanoConfig)
    config = recipe.model.model_copy(update={"depth": 2})
    with torch.device("meta"):
        model = build_model(config, size.in_channels, 1, (16, 16))
        fields, target = torch.empty(2, 16, 16, size.in_channels), torch.empty(2, 16, 16, 1)
    names = tuple(f"a{channel}" for channel in range(size.in_channels))
    known = Signature("steady", names, ("u",), Normaliser(0.0, 1.0), Normaliser(3.0, 1.0))
    task = Task(Split(known, fields, target), recipe.loss.gradient_weight)
    with LaunchCounter() as step:
        task.loss_parts(model, Batch(fields, target), torch.device("meta")).total.backward()
    assert len(step.launches) > FORWARD + BACKWARD  # of two layers
    assert step.waits == []


def test_what_makes_the_host_wait_is_seen() -> None:
    x = torch.ones(3)
    with LaunchCounter() as step:
        assert x.sum().item() == 3
        x.nonzero()
        x[x > 0]
    assert step.waits == ["_local_scalar_dense", "nonzero", "index"]
