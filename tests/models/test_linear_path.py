"""`path: linear`: what a model moves keeps its size."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from geomano_hpc.models.geomano import GeoMaNO, GeoMaNOLayer
from geomano_hpc.models.parts.local import DepthwiseConv


def model(path: str) -> GeoMaNO:
    torch.manual_seed(0)
    keys: dict[str, Any] = {"depth": 2, "embedding": 8, "scan": False, "way_out": "linear", "positional_encoding": True}
    return GeoMaNO(in_channels=2, out_channels=1, path=path, **keys).double()


def is_affine(of: Callable[[torch.Tensor], torch.Tensor], channels: int) -> bool:
    x = torch.randn(1, 5, 6, channels, dtype=torch.float64)
    with torch.no_grad():
        zero, once, thrice = of(torch.zeros_like(x)), of(x), of(3 * x)
    assert (once - zero).abs().max() > 1e-3
    return torch.allclose(thrice - zero, 3 * (once - zero), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("path", "expected"), [("linear", True), ("normed", False)])
def test_all_but_the_mlp_is_linear(path: str, expected: bool) -> None:
    one = model(path)
    layer = one.layers[0]
    assert isinstance(layer, GeoMaNOLayer)
    assert is_affine(one.encoder, 2) == expected
    assert is_affine(partial(layer.kernel, pre_norm=layer.kernel_norm), 8) == expected
    assert is_affine(lambda z: one.decoder(z, 5, 6), 8) == expected
    assert any(isinstance(part, nn.LayerNorm) for part in one.modules()) != expected


@pytest.mark.parametrize("wrap", [(False, False), (True, True)])
def test_a_convolution_without_activation_is_linear_in_any_size(wrap: tuple[bool, bool]) -> None:
    torch.manual_seed(0)
    convolution = DepthwiseConv(8, 5, activation="none").double()
    assert is_affine(lambda z: convolution(z, (1.0, 1.0), wrap), 8)
    assert is_affine(lambda z: convolution(z, (0.5, 0.5), wrap), 8)
