"""Where points and patches lie, in units of the training's grid."""

import pytest
import torch

from geomano_hpc.models.parts.encoder import LocalSpread
from geomano_hpc.models.parts.position import PositionalEncoding
from geomano_hpc.models.parts.sampling import Sampling

HALVED = Sampling(spacing=(0.5, 0.5), points=(9, 9))  # 17 points on the domain of 9


def test_patches_keep_their_physical_size_where_it_is_a_whole_number_of_points() -> None:
    assert HALVED.sides((2, 3)) == (4, 6)
    assert Sampling(spacing=(2.0, 1 / 3)).sides((4, 1)) == (2, 1)  # a pointwise encoder stays pointwise
    assert Sampling(spacing=(0.7, 0.7)).sides((2, 2)) == (2, 2)


def test_patches_lie_where_the_trainings_lie() -> None:
    """Four points at 1/2 cover what two points at 1 do, so the patches are 1 apart; their centres are off by a quarter
    of a step, since points are not cells."""
    patches = HALVED.of_patches((2, 2))
    assert patches.spacing == (1.0, 1.0)
    assert patches.points == (5, 5)
    assert patches.start == pytest.approx((0.125, 0.125))
    assert Sampling(points=(9, 9)).of_patches((2, 2)) == Sampling(points=(5, 5))


@pytest.mark.parametrize("ring", [False, True])
def test_a_point_has_the_same_position_on_every_grid(ring: bool) -> None:
    encode = PositionalEncoding(12, 8)
    at_9 = encode(torch.zeros(1, 9, 9, 12), Sampling(points=(9, 9), periodic=(ring, ring)))
    at_17 = encode(torch.zeros(1, 17, 17, 12), Sampling((0.5, 0.5), points=(9, 9), periodic=(ring, ring)))
    torch.testing.assert_close(at_17[::2, ::2], at_9, rtol=0, atol=1e-6)


def test_positions_of_a_trained_grid_are_what_they_were() -> None:
    encode = PositionalEncoding(12, 8)
    z = torch.zeros(1, 7, 5, 12)
    assert torch.equal(encode(z), encode(z, Sampling(points=(7, 5))))


def test_positions_along_a_ring_go_on_at_its_other_end() -> None:
    encode = PositionalEncoding(12, 8).double()
    found = encode(torch.zeros(1, 16, 8, 12, dtype=torch.float64), Sampling(points=(8, 8), periodic=(True, False)))
    torch.testing.assert_close(found[:8], found[8:], rtol=0, atol=1e-5)  # coordinates are in float32
    assert not torch.allclose(found[:, 0], found[:, -1])


def test_patches_with_more_points_are_spread_as_those_of_the_training() -> None:
    """A pattern that is constant over the patch stays what it was on four times the points."""
    spread = LocalSpread(3, (2, 2))
    with torch.no_grad():
        spread.weights.weight.zero_()
        spread.weights.bias.zero_()
    z = torch.randn(1, 4, 4, 3)
    coarse, fine = spread(z, 8, 8), spread(z, 16, 16, Sampling((0.5, 0.5)))
    torch.testing.assert_close(fine[:, ::2, ::2], coarse)
