"""Encoder and decoder: patches, grids that do not divide, other grids than that of the training."""

import pytest
import torch
import torch.nn.functional as F

from geomano_hpc.errors import ConfigError
from geomano_hpc.models import build_model
from geomano_hpc.models.geomano import GeomanoConfig
from geomano_hpc.models.parts.encoder import GlobalMix, LocalMix
from geomano_hpc.models.parts.patches import from_patches, patch_grid, to_patches


def small(**changes: object) -> GeomanoConfig:
    return GeomanoConfig.model_validate({"depth": 1, "embedding": 8, "dstate": 2, **changes})


def test_patches_are_cut_and_put_back_exactly() -> None:
    grid = torch.arange(2 * 6 * 4 * 3.0).view(2, 6, 4, 3)
    patches = to_patches(grid, (2, 2))
    assert patches.shape == (2, 3, 2, 4, 3)
    assert torch.equal(patches[0, 0, 0], grid[0, :2, :2].flatten(0, 1))
    assert torch.equal(from_patches(patches, (2, 2), 6, 4), grid)


@pytest.mark.parametrize("sides", [(2, 2), (3, 3), (1, 4), (5, 2)])
@pytest.mark.parametrize("size", [(1, 1), (5, 7), (9, 6), (2, 11)])
def test_padding_is_taken_off_again_exactly(size: tuple[int, int], sides: tuple[int, int]) -> None:
    grid = torch.randn(2, *size, 3)
    patches = to_patches(grid, sides)
    assert patches.shape[1:3] == patch_grid(*size, sides)
    assert torch.equal(from_patches(patches, sides, *size), grid)


@pytest.mark.parametrize("patch", [2, 3, 4])
@pytest.mark.parametrize("size", [(5, 7), (9, 6)])
def test_grid_that_does_not_divide_is_the_grid_with_its_last_lines_repeated(size: tuple[int, int], patch: int) -> None:
    model = build_model(small(encoder="local", patch=patch, positional_encoding=True), in_channels=2, out_channels=3)
    x = torch.randn(2, *size, 2)
    bottom, right = -size[0] % patch, -size[1] % patch
    padded = F.pad(x.movedim(-1, 1), (0, right, 0, bottom), mode="replicate").movedim(1, -1)
    expected = model(padded)[:, : size[0], : size[1]]
    assert model(x).shape == (2, *size, 3)
    assert torch.equal(model(x), expected)


@pytest.mark.parametrize("config", [small(), small(encoder="local", patch=2), small(encoder="local", patch=4)])
def test_one_set_of_parameters_serves_every_resolution(config: GeomanoConfig) -> None:
    model = build_model(config, in_channels=1, out_channels=1).eval()
    with torch.no_grad():
        for size in (43, 85, 421):
            y = model(torch.randn(1, size, size, 1))
            assert y.shape == (1, size, size, 1)
            assert y.isfinite().all()


def test_a_smooth_field_gives_nearly_the_same_answer_at_twice_the_resolution() -> None:
    """The pointwise parts do not know the grid at all; the kernel's small share of the answer does."""
    torch.manual_seed(0)
    model = build_model(small(), in_channels=1, out_channels=1).eval()

    def field(points: int) -> torch.Tensor:
        along = torch.linspace(0, torch.pi, points)
        return (along.sin()[:, None] * along.cos())[None, ..., None]

    with torch.no_grad():
        coarse, fine = model(field(43)), model(field(85))[:, ::2, ::2]
    assert torch.linalg.vector_norm(coarse - fine) < 0.5 * torch.linalg.vector_norm(coarse - coarse.mean())


def test_local_weights_stay_inside_the_patch() -> None:
    mix = LocalMix(4, (2, 2))
    y = torch.randn(1, 6, 6, 4)
    changed = y.clone()
    changed[:, :2, :2] += 1
    moved = (mix(changed) - mix(y)).abs().amax(dim=-1)[0]
    assert moved[0, 0] > 1e-3
    moved[0, 0] = 0
    assert not moved.any()


def test_global_weights_are_the_papers_matrix_over_the_whole_domain() -> None:
    """W = Softmax(Linear(Y)) in R^{P x L}, Z = W^T Y, written out for one sample."""
    mix = GlobalMix(4, (2, 2), (5, 6))
    y = torch.randn(2, 5, 6, 4)
    points = y[1].reshape(30, 4)
    weights = torch.softmax(points @ mix.weights.weight.T + mix.weights.bias, dim=0)
    assert weights.shape == (30, 9)
    assert torch.allclose(mix(y)[1].reshape(9, 4), weights.T @ points, atol=1e-6)


def test_global_encoder_refuses_another_grid() -> None:
    model = build_model(small(encoder="global", patch=2), in_channels=1, out_channels=1, grid=(6, 7))
    assert model(torch.randn(1, 6, 7, 1)).shape == (1, 6, 7, 1)
    with pytest.raises(ConfigError, match="tied to the grid of its training, 6 x 7, and was given 7 x 6"):
        model(torch.randn(1, 7, 6, 1))
    with pytest.raises(ConfigError, match="build the model with grid"):
        build_model(small(encoder="global", patch=2), in_channels=1, out_channels=1)
