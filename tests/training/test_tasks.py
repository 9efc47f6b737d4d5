import pytest
import torch
from torch import nn

from geomano_hpc.data import Normaliser, Signature, Split
from geomano_hpc.training.distributed.ranks import Ranks
from geomano_hpc.training.evaluate import evaluate
from geomano_hpc.training.losses import relative_l2
from geomano_hpc.training.tasks import Task

CPU = torch.device("cpu")
IDENTITY = Normaliser(0.0, 1.0)
ROLLOUT = Signature("rollout", ("u",), ("u",), IDENTITY, IDENTITY, frames_in=10, frames_out=10)


class LastFramePlusOne(nn.Module):
    def forward(self, frames_BHWC: torch.Tensor) -> torch.Tensor:
        return frames_BHWC[..., -1:] + 1


class LastFrameDoubled(nn.Module):
    """Wrong by a factor that grows with every frame, if and only if it is fed with its own."""

    def forward(self, frames_BHWC: torch.Tensor) -> torch.Tensor:
        return 2 * frames_BHWC[..., -1:]


class OldestFrame(nn.Module):
    """Of the frames that the model is shown: tells whether there are as many as at the start."""

    def forward(self, frames_BHWC: torch.Tensor) -> torch.Tensor:
        return frames_BHWC[..., :1]


def rollout() -> Task:
    """Two samples of the frames 1, 2, 3, ..., 20 on a grid, the second ten times as large."""
    frames = torch.arange(1.0, 21.0).expand(2, 3, 3, 20) * torch.tensor([1.0, 10.0]).view(2, 1, 1, 1)
    return Task(Split(ROLLOUT, frames[..., :10], frames[..., 10:]), gradient_weight=0.0)


def test_rollout_feeds_on_its_own_frames() -> None:
    """Frame 10 doubled again and again: 20, 40, 80, ... With the true frames it would be 20, 22, 24, ..."""
    found = rollout().predict(LastFrameDoubled(), torch.arange(2), CPU)
    expected = 10 * 2.0 ** torch.arange(1, 11)
    assert torch.equal(found[0], expected.expand(3, 3, 10))
    assert torch.equal(found[1], 10 * expected.expand(3, 3, 10))


def test_window_of_a_rollout_moves_on_frame_by_frame() -> None:
    """The model is always shown ten frames: first those that are given, then also its own."""
    found = rollout().predict(OldestFrame(), torch.tensor([0]), CPU)
    assert found[0, 0, 0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    longer = rollout().roll_out(OldestFrame(), torch.arange(1.0, 11.0).expand(1, 3, 3, 10), 12)
    assert longer[0, 0, 0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2]


def test_rollout_is_judged_on_its_own_frames_all_of_them_together() -> None:
    """|| all predicted - all true || / || all true ||, which no mean of the frames' errors is; theirs stand beside."""
    own = 10 * 2.0 ** torch.arange(1, 11)
    true = torch.arange(11.0, 21.0)
    whole = (own - true).norm() / true.norm()
    by_frame = ((own - true) / true).abs()
    assert abs(whole - by_frame.mean()) > 1
    task, samples = rollout(), torch.arange(2)
    assert task.errors(LastFrameDoubled(), samples, CPU).tolist() == pytest.approx([float(whole)] * 2, rel=1e-5)
    found = task.field_errors(LastFrameDoubled(), samples, CPU)[:, 0]
    assert found[0].tolist() == pytest.approx([float(whole), *by_frame.tolist()], rel=1e-5)
    assert found[1].tolist() == pytest.approx(found[0].tolist(), rel=1e-5)


def test_evaluation_of_a_rollout_is_neither_teacher_forced_nor_a_mean_of_frames() -> None:
    """What a run writes as its result."""
    task = rollout()
    found = evaluate(LastFrameDoubled(), task, 1, CPU, Ranks(0, 1, 0))
    own = 10 * 2.0 ** torch.arange(1, 11)
    true = torch.arange(11.0, 21.0)
    assert found.rel_l2 == pytest.approx(float((own - true).norm() / true.norm()), rel=1e-5)
    assert found.rel_l2_by_frame == pytest.approx(((own - true) / true).abs().tolist(), rel=1e-5)
    assert found.samples == 2


def test_training_of_a_rollout_is_teacher_forced() -> None:
    """The true frame before each target is given, so an error does not grow from frame to frame."""
    frames = torch.arange(1.0, 21.0).square().expand(1, 2, 2, 20)
    task = Task(Split(ROLLOUT, frames[..., :10], frames[..., 10:]), gradient_weight=0.0)
    expected = sum(relative_l2(frames[..., t - 1 : t] + 1, frames[..., t : t + 1]).item() for t in range(10, 20))
    found = task.loss_parts(LastFramePlusOne(), torch.tensor([0]), CPU).total.item()
    assert abs(found - expected) < 1e-5


def test_errors_are_in_physical_units() -> None:
    """A model that returns its normalised input is judged after decoding with the target's mean and deviation."""
    field = torch.randn(4, 3, 3, 1)
    known = Signature("steady", ("a",), ("u",), Normaliser(5.0, 7.0), Normaliser(2.0, 0.1))
    split = Split(known, field * 7 + 5, field * 0.1 + 2)
    task = Task(split, gradient_weight=0.0)
    assert task.errors(nn.Identity(), torch.arange(4), CPU).max() < 1e-6
