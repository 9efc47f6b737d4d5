"""Baselines behind the interface of our model: Transolver (ours, from its paper), FNO and U-NO (of neuraloperator)."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from geomano_hpc.config import load_recipe
from geomano_hpc.errors import GeomanoError
from geomano_hpc.models import build_model, count_parameters
from geomano_hpc.models.fno import FnoConfig
from geomano_hpc.models.transolver import PhysicsAttention, Transolver, TransolverConfig
from geomano_hpc.models.uno import UnoConfig

SMALL: dict[str, TransolverConfig | FnoConfig | UnoConfig] = {
    "transolver": TransolverConfig(depth=2, embedding=16, heads=2, slices=4, reference=3),
    "fno": FnoConfig(depth=2, embedding=6, modes=3),
    "uno": UnoConfig(embedding=6, modes=3),
}


@pytest.mark.parametrize(
    ("recipe", "changes", "in_channels", "parameters"),
    [
        ("darcy", [], 1, 2_826_945),
        ("navier_stokes", ["model.embedding=256", "model.slices=32"], 10, 11_232_321),
    ],
)
def test_transolver_has_the_published_number_of_parameters(
    recipe: str, changes: list[str], in_channels: int, parameters: int
) -> None:
    config = load_recipe(recipe, ["model.name=transolver", *changes]).model
    assert count_parameters(build_model(config, in_channels, 1)) == parameters


@pytest.mark.parametrize("name", SMALL)
def test_every_baseline_takes_any_grid_and_trains_every_parameter(name: str) -> None:
    torch.manual_seed(0)
    model = build_model(SMALL[name], in_channels=2, out_channels=3)
    for size in ((9, 11), (16, 16), (8, 21)):
        assert model(torch.randn(2, *size, 2)).shape == (2, *size, 3)
    model(torch.randn(2, 9, 11, 2)).square().sum().backward()
    silent = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert silent == []
    assert not any(parameter.is_complex() for parameter in model.parameters())


def test_physics_attention_written_out_slice_by_slice() -> None:
    """Slice weights by a softmax with temperature; tokens as weighted means; attention between them; back to points."""
    torch.manual_seed(0)
    attention = PhysicsAttention(SMALL["transolver"]).double()  # type: ignore[arg-type]
    x = torch.randn(1, 3, 5, 16, dtype=torch.float64)
    points = [
        convolution(x.movedim(-1, 1))[0].flatten(1).T.unflatten(1, (2, 8))  # [P, heads, c]
        for convolution in (attention.to_slices, attention.to_values)
    ]
    parts = []
    for head in range(2):
        weights = F.softmax(attention.slice_projection(points[0][:, head]) / 0.5, dim=-1)
        tokens = torch.stack(
            [(weights[:, g, None] * points[1][:, head]).sum(0) / (weights[:, g].sum() + 1e-5) for g in range(4)]
        )
        scores = attention.query(tokens) @ attention.key(tokens).T / 8**0.5
        parts.append(weights @ (scores.softmax(dim=-1) @ attention.value(tokens)))
    expected = attention.out_projection(torch.cat(parts, dim=-1)).unflatten(0, (3, 5))
    assert torch.allclose(attention(x)[0], expected, rtol=1e-9, atol=1e-12)


def test_transolver_knows_where_a_point_is() -> None:
    model = Transolver(in_channels=1, out_channels=1, reference=2)
    distances = model._positions(torch.zeros(1, 3, 5, 1))
    assert distances.shape == (1, 3, 5, 4)
    assert torch.allclose(distances[0, 0, 0], torch.tensor([0.0, 1.0, 1.0, 2**0.5]))
    assert torch.allclose(distances[0, 1, 2], torch.full((4,), 0.5**0.5))


def test_real_storage_of_spectral_weights_changes_nothing_that_fno_computes() -> None:
    from neuralop.models import FNO

    config = FnoConfig(depth=2, embedding=6, modes=3)
    torch.manual_seed(0)
    expected = FNO(n_modes=(6, 6), in_channels=1, out_channels=1, hidden_channels=6, n_layers=2)
    torch.manual_seed(0)
    ours = build_model(config, 1, 1)
    x = torch.randn(2, 9, 9, 1)
    assert torch.equal(ours(x), expected(x.movedim(-1, 1)).movedim(1, -1))
    real = sum(p.numel() * (2 if p.is_complex() else 1) for p in expected.parameters())
    assert count_parameters(ours) == real  # a complex number counts as the two that it is


@pytest.mark.parametrize("name", ["fno", "uno"])
def test_missing_package_is_an_error_that_says_how_to_install_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "neuralop", None)
    monkeypatch.setitem(sys.modules, "neuralop.models", None)
    with pytest.raises(GeomanoError, match=r"need the package neuraloperator .*pip install 'geomano_hpc\[baselines\]'"):
        build_model(SMALL[name], 1, 1)


@pytest.mark.slow
def test_our_models_do_not_load_the_extra() -> None:
    program = (
        "import sys; from geomano_hpc.config import load_recipe; from geomano_hpc.models import build_model\n"
        "build_model(load_recipe('darcy_smoke').model, 1, 1)\n"
        "print([m for m in ('neuralop', 'tltorch', 'deepspeed', 'zarr') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
