"""Values that are carried along: taken from other places, between points, across rings and at walls."""

import math

import pytest
import torch

from geomano_hpc.models.geomano import GeomanoConfig, GeoMaNOLayer
from geomano_hpc.models.parts.sampling import Sampling
from geomano_hpc.models.parts.transport import Transport, moved

TORUS = (True, True)


def displaced(v: torch.Tensor, down: float, along: float, rings: tuple[bool, bool]) -> torch.Tensor:
    """[h, w] taken from so many points farther down and along."""
    d = torch.tensor([down, along], dtype=v.dtype).expand(1, *v.shape, 2)
    return moved(v[None, None], d, rings)[0, 0]


@pytest.mark.parametrize("shift", [(0, 0), (2, 0), (0, -3), (-5, 9), (40, -70)])
def test_on_a_torus_whole_points_are_a_roll(shift: tuple[int, int]) -> None:
    v = torch.randn(6, 9, dtype=torch.float64)
    torch.testing.assert_close(displaced(v, *shift, TORUS), v.roll((-shift[0], -shift[1]), (0, 1)))


def test_between_points_it_is_linear_across_the_end_of_a_ring_too() -> None:
    v = torch.randn(5, 4, dtype=torch.float64)
    between = displaced(v, 0.25, 0.0, TORUS)
    torch.testing.assert_close(between, 0.75 * v + 0.25 * v.roll(-1, 0))


def test_beyond_a_wall_it_is_that_of_the_wall() -> None:
    v = torch.randn(5, 4, dtype=torch.float64)
    torch.testing.assert_close(displaced(v, 7.5, 0.0, (False, True)), v[4].expand(5, 4))
    torch.testing.assert_close(displaced(v, 7.0, 0.0, (True, False)), v.roll(-2, 0))


@pytest.mark.parametrize("rings", [TORUS, (False, False)])
def test_gradients_of_values_and_of_places(rings: tuple[bool, bool]) -> None:
    v = torch.randn(2, 3, 4, 5, dtype=torch.float64, requires_grad=True)
    d = (2 * torch.rand(2, 4, 5, 2, dtype=torch.float64) - 1).requires_grad_()  # at kinks with no probability
    assert torch.autograd.gradcheck(lambda v, d: moved(v, d, rings), (v, d))


def on_points(n: int) -> torch.Tensor:
    """A smooth field of four features on a torus of n x n points."""
    x = torch.arange(n, dtype=torch.float64) * 2 * math.pi / n
    i, j = torch.meshgrid(x, x, indexing="ij")
    return torch.stack([i.sin(), j.cos(), (i + j).sin(), (i - 2 * j).cos()], dim=-1)[None]


def test_places_are_lengths_and_not_points() -> None:
    torch.manual_seed(0)
    part = Transport(4, heads=2).double()
    torch.nn.init.normal_(part.displacement.weight)
    trained, twice = Sampling(points=(64, 64), periodic=TORUS), Sampling((0.5, 0.5), points=(64, 64), periodic=TORUS)
    with torch.no_grad():
        coarse, fine = part(on_points(64), trained), part(on_points(128), twice)[:, ::2, ::2]
        counted = part(on_points(128), Sampling(points=(64, 64), periodic=TORUS))[:, ::2, ::2]
    assert (fine - coarse).norm() < 0.02 * coarse.norm()
    assert (counted - coarse).norm() > 0.1 * coarse.norm()


def test_a_layer_adds_what_is_carried_along_between_kernel_and_mlp() -> None:
    torch.manual_seed(0)
    layer = GeoMaNOLayer(GeomanoConfig(embedding=8, dstate=2, transport=2))
    z, where = torch.randn(1, 5, 6, 8), Sampling(periodic=TORUS)
    with torch.no_grad():
        s = z + layer.kernel(z, layer.kernel_norm, where)
        assert layer.transport is not None
        s = s + layer.transport(layer.transport_norm(s), where)
        torch.testing.assert_close(layer(z, where), s + layer.mlp(s, layer.mlp_norm, where))


def test_before_the_training_all_but_nothing_moves() -> None:
    torch.manual_seed(0)
    part, z = Transport(32, heads=4), torch.randn(1, 9, 9, 32)
    assert 0 < (4 * part.displacement(z)).abs().max() < 1  # of a point


def test_low_precision_does_not_blur_places() -> None:
    v = torch.randn(1, 1, 1, 600)
    d = torch.zeros(1, 1, 600, 2)
    low = moved(v.bfloat16(), d.bfloat16(), TORUS)
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low, v.bfloat16())


def test_a_line_is_carried_along_too() -> None:
    v, d = torch.randn(1, 2, 1, 7), torch.tensor([0.0, 3.0]).expand(1, 1, 7, 2)
    torch.testing.assert_close(moved(v, d, (False, True)), v.roll(-3, 3))


def test_heads_divide_the_embedding() -> None:
    with pytest.raises(ValueError, match="embedding 32 is not a multiple of transport 5"):
        GeomanoConfig(embedding=32, transport=5)
