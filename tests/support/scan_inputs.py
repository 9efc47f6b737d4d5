"""Random scans, and what the float64 reference makes of them."""

import itertools
from typing import Any

import torch

from geomano_hpc.kernels import ScanOrder, geo_scan, order_set
from geomano_hpc.kernels.inputs import ScanInputs, ScanSettings
from geomano_hpc.kernels.scan import _scan

ALL_EIGHT = tuple(ScanOrder(*flags) for flags in itertools.product([False, True], repeat=3))
PAPER = order_set("paper")


def random_inputs(
    batch: int = 1,
    height: int = 3,
    width: int = 4,
    channels: int = 2,
    dstate: int = 3,
    K: int = 4,
    rank: int | None = None,
    dtype: torch.dtype = torch.float64,
) -> dict[str, Any]:
    """Inputs of geo_scan. Rounded to the precision, so that the reference can judge it on the same numbers."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    def parameter(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if dtype == torch.float64 else tensor.float()

    grid = (batch, height, width)
    return {
        "x": normal(*grid, channels),
        "dt": normal(*grid, K, rank or channels),
        "A": parameter(-torch.exp(normal(K, channels, dstate))),
        "B": normal(*grid, K, dstate),
        "C": normal(*grid, K, dstate),
        "D": parameter(normal(K, channels)),
        "R": parameter(normal(K, channels, dstate)),
        "dt_bias": parameter(normal(K, channels)),
        "dt_weight": None if rank is None else parameter(normal(K, channels, rank)),
    }


def scan_and_gradients(
    inputs: dict[str, Any], rounded_to: torch.dtype | None = None, **options: Any
) -> dict[str, torch.Tensor]:
    """y, and the gradient of a weighted sum of y by every input that is there; the weights may be rounded."""
    leaves: dict[str, Any] = {name: None if t is None else t.detach().requires_grad_() for name, t in inputs.items()}
    y = computed(leaves, **options)
    weights = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).cos().view_as(y)
    weights = weights.to(rounded_to or y.dtype).to(y.dtype)
    given = {name: t for name, t in leaves.items() if t is not None}
    with torch.autocast("cpu", enabled=False):  # as torch asks: autocast is for the forward
        grads = torch.autograd.grad(y, list(given.values()), weights, allow_unused=True, materialize_grads=True)
    return {"y": y.detach(), **dict(zip(given, grads, strict=True))}


def computed(
    inputs: dict[str, Any],
    stretch: float | None = None,
    own: tuple[float, float] = (0.0, 0.0),
    hold: tuple[float, float] | None = None,
    **options: Any,
) -> torch.Tensor:
    """geo_scan; with `stretch` one scan of a backend with all of its settings, which geo_scan makes of a spacing."""
    if stretch is None:
        return geo_scan(**inputs, **options)
    orders = order_set(options["orders"]) if isinstance(options["orders"], str) else tuple(options["orders"])
    form = options.get("correction", "equation")
    asked, (_, height, width, _) = options.get("periodic", (False, False)), inputs["x"].shape
    rings = (asked[0] and height > 1, asked[1] and width > 1)  # an axis of one point is none
    settings = ScanSettings(orders, options["kind"], form, stretch, rings, own, hold)
    return _scan(ScanInputs(**inputs), settings, options["backend"])


def assert_like_reference(inputs: dict[str, Any], tolerance: float, **options: Any) -> None:
    """Forward and every gradient, relative to the largest value of the reference in float64."""
    found = scan_and_gradients(inputs, **options)
    exact = {name: None if t is None else t.double() for name, t in inputs.items()}
    expected = scan_and_gradients(exact, inputs["x"].dtype, **{**options, "backend": "reference"})
    assert found.keys() == expected.keys()
    for name, right in expected.items():
        assert found[name].shape == right.shape
        error = (found[name].double() - right).abs().max() / right.abs().max().clamp_min(1e-30)
        assert error <= tolerance, f"{name} is wrong by {error:.1e}"
