import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from geomano_hpc.config import load_recipe
from geomano_hpc.models import build_model
from geomano_hpc.models.geomano import GeomanoConfig
from geomano_hpc.models.parts.geomamba import GeoMambaKernel

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
