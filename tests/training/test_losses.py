import math

import pytest
import torch

from geomano_hpc.training.losses import central_differences, gradient_loss, relative_l2


def test_relative_l2_of_each_sample() -> None:
    target = torch.tensor([[3.0, 4.0], [1.0, 0.0]]).view(2, 1, 2, 1)
    prediction = torch.tensor([[3.0, 9.0], [1.0, 0.0]]).view(2, 1, 2, 1)
    assert relative_l2(prediction, target).tolist() == [1.0, 0.0]


def test_central_differences_of_a_plane_are_its_slopes() -> None:
    i, j = torch.meshgrid(torch.arange(5.0), torch.arange(6.0), indexing="ij")
    d_dx, d_dy = central_differences((2 * i + 3 * j).view(1, 5, 6, 1))
    assert (d_dx[0, 1:-1] == 2).all()
    assert (d_dy[0, :, 1:-1] == 3).all()
    assert d_dx[0, 0, 0, 0] == (2 * 1) / 2  # zero outside the grid


def test_gradient_loss_ignores_the_border_of_the_prediction() -> None:
    target = torch.zeros(1, 6, 6, 1)
    target[:, 1:-1, 1:-1] = torch.randn(1, 4, 4, 1)
    prediction = target.clone()
    prediction[:, 0] = 100.0
    assert gradient_loss(prediction, target).item() == 0.0
    prediction[:, 2, 2] += 1.0
    assert gradient_loss(prediction, target).item() > 0.0


def test_gradient_loss_is_the_sum_of_two_relative_errors() -> None:
    target = torch.zeros(1, 5, 5, 1)
    target[0, 2, 2] = 1.0
    assert gradient_loss(2 * target, target).item() == pytest.approx(2.0)
    assert math.isclose(gradient_loss(0 * target, target).item(), 2.0)
