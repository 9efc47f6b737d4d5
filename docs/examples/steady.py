"""A steady problem: the pressure of Darcy flow

Water seeps through a ground of two materials. The input is the permeability `a`, the target the pressure `u` that
solves `-div(a grad u) = 1` with zero on the boundary. A small GeoMaNO learns the way from `a` to `u` from 100 solved
samples, and predicts the pressure of samples that it has not seen.
"""

import matplotlib.pyplot as plt
import torch

import geomano_hpc as gm


def draw(a: torch.Tensor, u: torch.Tensor, predicted: torch.Tensor) -> None:
    """A row for each sample: input, truth, prediction, error. [samples, H, W] each."""
    figure, axes = plt.subplots(len(a), 4, figsize=(9, 2.1 * len(a)), layout="constrained")
    for row, (given, truth, guess) in enumerate(zip(a, u, predicted, strict=True)):
        error = guess - truth
        largest = float(error.abs().max())
        panels = [
            ("permeability a", given, {"cmap": "Greys", "vmin": 0}),
            ("pressure u", truth, {"vmin": 0, "vmax": float(truth.max())}),
            ("prediction", guess, {"vmin": 0, "vmax": float(truth.max())}),
            ("error", error, {"cmap": "RdBu_r", "vmin": -largest, "vmax": largest}),
        ]
        for axis, (title, field, colours) in zip(axes[row], panels, strict=True):
            figure.colorbar(axis.imshow(field, **colours), ax=axis, shrink=0.9)
            axis.set(xticks=[], yticks=[], title=title if row == 0 else "")
    figure.savefig("steady.png", dpi=150)


if __name__ == "__main__":
    # The shipped recipe `darcy_smoke` generates its data. The changes make it quick.
    small = {
        "data.generate.train_samples": 100,
        "data.generate.test_samples": 20,
        "training.epochs": 8,
        "training.figures_every": 0,
    }
    result = gm.train("darcy_smoke", small, out="runs/steady")
    print(f"relative L2 error on {result.test_samples} test samples: {result.rel_l2:.3f}")

    run = gm.load(result.folder)
    a, u = gm.open_dataset("data/darcy_smoke.zarr", split="test")[:3]  # [3, H, W, 1] each, in physical units
    draw(a[..., 0], u[..., 0], run.predict(a)[..., 0])
