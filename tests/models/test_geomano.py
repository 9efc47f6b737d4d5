import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from geomano_hpc.config import load_recipe
from geomano_hpc.models import build_model
from geomano_hpc.models.geomano import GeomanoConfig
from geomano_hpc.models.parts.geomamba import GeoMambaKernel
from geomano_hpc.models.parts.spectral import SpectralBranch

VARIANTS: dict[str, dict[str, object]] = {
    "paper_2d": {"kind": "2d", "correction": "0011"},
    "paper_1d": {"kind": "1d", "correction": "learnable", "positional_encoding": True},
    "none": {"kind": "2d", "correction": "none"},
    "state": {"kind": "2d", "correction": "0011", "correction_form": "state"},
    "corners": {"kind": "2d", "orders": "corners"},
    "local": {"kind": "2d", "encoder": "local", "patch": 2},
    "global": {"kind": "2d", "encoder": "global", "patch": 2},
    "expand": {"kind": "2d", "expand": 2},
    "learnable_state": {"kind": "2d", "correction": "learnable", "correction_form": "state"},
    "learnable_input": {"kind": "2d", "correction": "learnable", "correction_form": "input"},
    "convolutions": {"conv_size": 7, "mlp_conv": 5},
    "spectral": {"spectral_modes": 2},
    "transport": {"transport": 2},
    "linear path": {"path": "linear", "conv_size": 5, "encoder": "local", "patch": 2},
    "full_dt": {"dt_rank": "full"},
    "biases": {"scan_bias": True, "dt_rank": 3},
    "linear": {"way_out": "linear"},
    "product": {"way_out": "product"},
}


def small(**changes: object) -> GeomanoConfig:
    return GeomanoConfig.model_validate({"depth": 2, "embedding": 8, "dstate": 3, **changes})


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_parameter_gets_a_nonzero_gradient(variant: str) -> None:
    torch.manual_seed(0)
    model = build_model(small(**VARIANTS[variant]), in_channels=2, out_channels=1, grid=(5, 6))
    model(torch.randn(2, 5, 6, 2)).square().sum().backward()
    silent = [
        name for name, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()
    ]
    assert silent == []


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_block_changes_the_output(variant: str) -> None:
    """Scaling the weights of any block changes what comes out, so no block is dead."""
    torch.manual_seed(0)
    model = build_model(small(**VARIANTS[variant]), in_channels=2, out_channels=1, grid=(5, 6)).double()
    x = torch.randn(1, 5, 6, 2, dtype=torch.float64)
    with torch.no_grad():
        before = model(x)
        for name, block in model.named_modules():
            parameters = list(block.parameters(recurse=False))
            if not parameters:
                continue
            kept = [parameter.clone() for parameter in parameters]
            for parameter in parameters:
                parameter.mul_(1.5).add_(0.1)
            assert not torch.allclose(model(x), before, rtol=0, atol=1e-9), name
            for parameter, value in zip(parameters, kept, strict=True):
                parameter.copy_(value)
        assert torch.equal(model(x), before)


def test_variants_compute_different_things() -> None:
    """The switches reach the computation: equal weights, different outputs."""
    x = torch.randn(1, 6, 6, 1)
    outputs = {}
    for name, changes in {
        "2d 0011": {},
        "1d 0011": {"kind": "1d"},
        "2d 0001": {"correction": "0001"},
        "2d none": {"correction": "none"},
        "2d state": {"correction_form": "state"},
        "2d corners": {"orders": "corners"},
    }.items():
        torch.manual_seed(0)
        outputs[name] = build_model(small(**changes), in_channels=1, out_channels=1)(x)
    for one, other in itertools.combinations(outputs, 2):
        assert not torch.allclose(outputs[one], outputs[other], atol=1e-7), (one, other)


def test_learnable_correction_starts_as_the_vanilla_scan() -> None:
    x = torch.randn(1, 5, 5, 1)
    outputs = []
    for correction in ("none", "learnable"):
        torch.manual_seed(0)
        outputs.append(build_model(small(correction=correction), in_channels=1, out_channels=1)(x))
    assert torch.equal(*outputs)


def test_mambas_initialisation_survives_a_blanket_reset_of_linear_layers() -> None:
    """What many trainers do, zero biases and small weights in every Linear, must not touch dt, A and D."""
    model = build_model(small(correction="learnable"), in_channels=1, out_channels=1)

    def reset(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)

    model.apply(reset)
    kernels = [module for module in model.modules() if isinstance(module, GeoMambaKernel)]
    assert len(kernels) == 2
    for kernel in kernels:
        assert torch.allclose(torch.exp(kernel.A_log), torch.arange(1.0, 4.0).expand(4, 8, 3))
        assert torch.equal(kernel.skip, torch.ones(4, 8))
        steps = F.softplus(kernel.dt_bias)
        assert steps.min() >= 0.99e-3
        assert steps.max() <= 1.01e-1
        assert steps.max() > 2 * steps.min()  # log-uniform, not one value
        assert kernel.dt_weight is not None
        assert kernel.dt_weight.abs().max() <= 1  # rank 1: uniform in +-1
        assert kernel.dt_weight.std() > 0.3
        assert kernel.R is not None
        assert not kernel.R.any()


def test_sizes_of_the_papers_models() -> None:
    """So that a change of the architecture is a decision and not an accident."""
    counts = {}
    for name, in_channels in (("darcy", 1), ("navier_stokes", 10)):
        model = build_model(load_recipe(name).model, in_channels, 1)
        counts[name] = sum(parameter.numel() for parameter in model.parameters())
    assert counts == {"darcy": 330_753, "navier_stokes": 4_069_889}


def test_full_time_step_is_one_linear_of_all_channels() -> None:
    """Algorithm 1 read literally: Delta, B and C come out of one Linear."""
    kernel = GeoMambaKernel(8, dstate=3, dt_rank="full")
    assert kernel.dt_weight is None
    assert kernel.scan_projection.out_features == 4 * (8 + 2 * 3)


def test_spectral_branch_is_the_same_on_every_grid_that_holds_its_modes() -> None:
    torch.manual_seed(0)
    branch = SpectralBranch(4, 3).double()
    x = torch.zeros(1, 8, 12, 4, dtype=torch.float64)
    i, j = torch.meshgrid(torch.arange(8) / 8, torch.arange(12) / 12, indexing="ij")
    for down, along in ((0, 0), (1, 2), (2, 1), (-2, 2)):
        x += (2 * torch.pi * (down * i + along * j) + down)[None, ..., None].cos()
    upsampled = torch.fft.irfft2(_padded(torch.fft.rfft2(x, dim=(1, 2), norm="forward")), (16, 24), (1, 2), "forward")
    torch.testing.assert_close(branch(upsampled)[:, ::2, ::2], branch(x))
    assert branch(x).norm() > 0.1


def _padded(modes: torch.Tensor) -> torch.Tensor:
    """Of 8 x 12 points, for 16 x 24."""
    wide = modes.new_zeros(1, 16, 13, 4)
    wide[:, :4, :7], wide[:, -4:, :7] = modes[:, :4], modes[:, -4:]
    return wide


@pytest.mark.parametrize("key", ["conv_size", "mlp_conv"])
def test_a_convolution_has_a_point_in_its_middle(key: str) -> None:
    with pytest.raises(ValueError, match=f"{key} is 4: a convolution has a point in its middle, so take 5"):
        small(**{key: 4})
