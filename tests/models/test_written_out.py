"""Encoder and decoder written out point by point in float64, from the names under which a run saves their weights.

The golden losses would notice most changes here, but not say which: each fault has a test of its own.
"""

import math

import pytest
import torch

from geomano_hpc.models import build_model
from geomano_hpc.models.geomano import GeomanoConfig

D, H, W, PATCH = 6, 4, 8, 2
h, w = H // PATCH, W // PATCH  # powers of two, so that the centres of patches are exact in any precision
Weights = dict[str, torch.Tensor]


def random_model(**changes: object) -> tuple[torch.nn.Module, Weights]:
    """In float64 and with all its weights drawn at random: a norm or a bias that is left out shows."""
    torch.manual_seed(0)
    names = {"depth": 1, "embedding": D, "dstate": 2, **changes}
    model = build_model(GeomanoConfig.model_validate(names), in_channels=2, out_channels=3, grid=(H, W)).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    return model, model.state_dict()


def linear(weights: Weights, name: str, v: torch.Tensor) -> torch.Tensor:
    return v @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def layer_norm(weights: Weights, name: str, v: torch.Tensor) -> torch.Tensor:
    centred = v - v.mean(dim=-1, keepdim=True)
    scale = torch.rsqrt(centred.square().mean(dim=-1, keepdim=True) + 1e-5)
    return centred * scale * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def gelu(v: torch.Tensor) -> torch.Tensor:
    """By the normal distribution itself, not by its approximation with tanh."""
    return 0.5 * v * (1 + torch.erf(v / math.sqrt(2)))


def lifted(weights: Weights, x: torch.Tensor) -> torch.Tensor:
    return linear(weights, "encoder.lift.2", gelu(linear(weights, "encoder.lift.0", x)))


def shares(logits: torch.Tensor) -> torch.Tensor:
    """Softmax over the first axis: what competes for a share stands there."""
    return logits.exp() / logits.exp().sum(dim=0)


def points_of(i: int, j: int) -> list[tuple[int, int]]:
    return [(PATCH * i + a, PATCH * j + b) for a in range(PATCH) for b in range(PATCH)]


def encoded(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(model.get_submodule("encoder")(x[None])[0])


def decoded(model: torch.nn.Module, z: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(model.get_submodule("decoder")(z[None], H, W)[0])


@torch.no_grad()
def test_lift_is_two_linear_maps_with_the_exact_gelu_between() -> None:
    model, weights = random_model()
    x = 3 * torch.randn(H, W, 2, dtype=torch.float64)
    expected = layer_norm(weights, "encoder.norm", lifted(weights, x))
    torch.testing.assert_close(encoded(model, x), expected, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_local_encoder_shares_a_patch_among_its_points_for_each_feature() -> None:
    """W = Softmax(Linear(Y)) over the points of the patch, Z = LayerNorm(W^T Y)."""
    model, weights = random_model(encoder="local", patch=PATCH)
    x = torch.randn(H, W, 2, dtype=torch.float64)
    y = lifted(weights, x)
    z = torch.zeros(h, w, D, dtype=torch.float64)
    for i in range(h):
        for j in range(w):
            y_pD = torch.stack([y[point] for point in points_of(i, j)])
            z[i, j] = (shares(linear(weights, "encoder.mix.weights", y_pD)) * y_pD).sum(dim=0)
    torch.testing.assert_close(encoded(model, x), layer_norm(weights, "encoder.norm", z), rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_global_encoder_shares_each_patch_among_all_points() -> None:
    """The paper's W in R^{P x L}: its columns, not its rows, sum to one."""
    model, weights = random_model(encoder="global", patch=PATCH)
    x = torch.randn(H, W, 2, dtype=torch.float64)
    y_PD = lifted(weights, x).reshape(H * W, D)
    w_PL = shares(linear(weights, "encoder.mix.weights", y_PD))
    z = (w_PL.T @ y_PD).reshape(h, w, D)
    torch.testing.assert_close(encoded(model, x), layer_norm(weights, "encoder.norm", z), rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_local_decoder_shares_a_patch_among_its_points_for_each_feature() -> None:
    """W = Softmax(Linear(Z)) over the points of the patch, X = Linear(LayerNorm(W^T Z))."""
    model, weights = random_model(encoder="local", patch=PATCH)
    z = torch.randn(h, w, D, dtype=torch.float64)
    y = torch.zeros(H, W, D, dtype=torch.float64)
    for i in range(h):
        for j in range(w):
            w_pD = shares(linear(weights, "decoder.spread.weights", z[i, j]).reshape(PATCH * PATCH, D))
            for point, share in zip(points_of(i, j), w_pD, strict=True):
                y[point] = share * z[i, j]
    expected = linear(weights, "decoder.project", layer_norm(weights, "decoder.norm", y))
    torch.testing.assert_close(decoded(model, z), expected, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_global_decoder_makes_each_point_a_mean_of_all_patches() -> None:
    """W in R^{L x P}: what a point takes of all the patches sums to one."""
    model, weights = random_model(encoder="global", patch=PATCH)
    z = torch.randn(h, w, D, dtype=torch.float64)
    w_LP = shares(linear(weights, "decoder.spread.weights", z.reshape(h * w, D)))
    y = (w_LP.T @ z.reshape(h * w, D)).reshape(H, W, D)
    expected = linear(weights, "decoder.project", layer_norm(weights, "decoder.norm", y))
    torch.testing.assert_close(decoded(model, z), expected, rtol=1e-9, atol=1e-9)


@torch.no_grad()
@pytest.mark.parametrize("encoder", [{}, {"encoder": "local", "patch": PATCH}])
def test_position_is_that_of_the_patch_centres_in_eight_octaves_and_joins_before_the_norm(
    encoder: dict[str, object],
) -> None:
    """Sines, then cosines, of (pi / 2) 2^k times the coordinate in the unit square, k = 0..7; rows before columns."""
    model, weights = random_model(positional_encoding=True, **encoder)
    x = torch.randn(H, W, 2, dtype=torch.float64)
    rows, columns = (h, w) if encoder else (H, W)
    half_pi = float(torch.tensor(math.pi / 2))  # the model keeps its frequencies in float32
    features = torch.zeros(rows, columns, 32, dtype=torch.float64)
    for i in range(rows):
        for j in range(columns):
            values = []
            for centre in ((i + 0.5) / rows, (j + 0.5) / columns):
                angles = [half_pi * 2**k * centre for k in range(8)]
                values += [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles]
            features[i, j] = torch.tensor(values, dtype=torch.float64)
    position = linear(weights, "encoder.position.project", features)
    encoder_module = model.get_submodule("encoder")
    model.get_submodule("encoder.norm").register_forward_pre_hook(lambda _module, given: seen.append(given[0][0]))
    seen: list[torch.Tensor] = []
    with_position = encoder_module(x[None])[0]
    torch.nn.init.zeros_(model.get_parameter("encoder.position.project.weight"))
    torch.nn.init.zeros_(model.get_parameter("encoder.position.project.bias"))
    encoder_module(x[None])
    torch.testing.assert_close(seen[0] - seen[1], position, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(with_position, layer_norm(weights, "encoder.norm", seen[0]), rtol=1e-9, atol=1e-9)


def test_rank_of_the_time_step_is_a_sixteenth_of_the_embedding_whatever_the_expansion() -> None:
    """ceil(D / 16) of the embedding D, not of the E = expand * D channels of the scan."""
    for expand in (1, 2):
        config = GeomanoConfig(depth=1, embedding=18, dstate=3, expand=expand)
        shapes = {name: tuple(value.shape) for name, value in build_model(config, 1, 1).state_dict().items()}
        assert shapes["layers.0.kernel.dt_weight"] == (4, 18 * expand, 2)
        assert shapes["layers.0.kernel.scan_projection.weight"] == (4 * (2 + 2 * 3), 18 * expand)
