import torch
from torch import nn

from geomano_hpc.data import Normaliser, Split
from geomano_hpc.training.losses import relative_l2
from geomano_hpc.training.tasks import Task

CPU = torch.device("cpu")


class LastFramePlusOne(nn.Module):
    def forward(self, frames_BHWC: torch.Tensor) -> torch.Tensor:
        return frames_BHWC[..., -1:] + 1


def test_rollout_feeds_on_its_own_frames() -> None:
    frames = torch.arange(20.0).expand(2, 3, 3, 20)
    identity = Normaliser(0.0, 1.0)
    task = Task(Split("rollout", frames[..., :10], frames[..., 10:], identity, identity), gradient_weight=0.0)
    samples = torch.arange(2)
    assert torch.equal(task.predict(LastFramePlusOne(), samples, CPU), frames[..., 10:])
    assert task.errors(LastFramePlusOne(), samples, CPU).tolist() == [0.0, 0.0]


def test_training_of_a_rollout_is_teacher_forced() -> None:
    """The true frame before each target is given, so an error does not grow from frame to frame."""
    frames = torch.arange(1.0, 21.0).square().expand(1, 2, 2, 20)
    identity = Normaliser(0.0, 1.0)
    task = Task(Split("rollout", frames[..., :10], frames[..., 10:], identity, identity), gradient_weight=0.0)
    expected = sum(relative_l2(frames[..., t - 1 : t] + 1, frames[..., t : t + 1]).item() for t in range(10, 20))
    found = task.training_loss(LastFramePlusOne(), torch.tensor([0]), CPU).item()
    assert abs(found - expected) < 1e-5


def test_errors_are_in_physical_units() -> None:
    """A model that returns its normalised input is judged after decoding with the target's mean and deviation."""
    field = torch.randn(4, 3, 3, 1)
    split = Split("steady", field * 7 + 5, field * 0.1 + 2, Normaliser(5.0, 7.0), Normaliser(2.0, 0.1))
    task = Task(split, gradient_weight=0.0)
    assert task.errors(nn.Identity(), torch.arange(4), CPU).max() < 1e-6
