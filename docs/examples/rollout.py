"""A rollout: a flow that goes on by itself

The vorticity of a two-dimensional flow is given at ten times, t = 1 to 10. The model predicts the next frame, takes
its own frame as input, and goes on so to t = 20. A small model learns this from 16 flows. The picture shows one flow
that it has not seen, and how the error grows while the model feeds on its own frames.
"""

import matplotlib.pyplot as plt
import torch

import geomano_hpc as gm


def draw(truth: torch.Tensor, predicted: torch.Tensor, error_by_frame: list[float]) -> None:
    """Four of the ten frames [H, W, 10], and the error of each frame over all test samples."""
    shown = (0, 3, 6, 9)
    rows = {"truth": truth, "prediction": predicted}
    panels = [[f"{name} {n}" for n in shown] + ["curve"] for name in rows]
    figure, axes = plt.subplot_mosaic(panels, figsize=(11, 4), width_ratios=[1, 1, 1, 1, 1.6], layout="constrained")
    largest = float(truth.abs().max())
    for name, frames in rows.items():
        for n in shown:
            axis = axes[f"{name} {n}"]
            axis.imshow(frames[..., n], cmap="RdBu_r", vmin=-largest, vmax=largest)
            axis.set(xticks=[], yticks=[], title=f"t = {n + 11}" if name == "truth" else "")
        axes[f"{name} {shown[0]}"].set_ylabel(name)
    axes["curve"].plot(range(11, 21), error_by_frame, marker="o")
    axes["curve"].set(title="error by frame", xlabel="t", ylabel="relative L2", ylim=(0, None))
    axes["curve"].grid(alpha=0.3)
    figure.savefig("rollout.png", dpi=150)


if __name__ == "__main__":
    # The shipped recipe `navier_stokes_smoke` generates its data: flows of viscosity 1e-3 on 16 x 16 points.
    small = {
        "data.generate.train_samples": 16,
        "data.generate.test_samples": 4,
        "training.epochs": 20,
        "training.batch_size": 2,
        "training.figures_every": 0,
    }
    result = gm.train("navier_stokes_smoke", small, out="runs/rollout")
    print(f"relative L2 error over ten frames: {result.rel_l2:.3f}")

    run = gm.load(result.folder)
    given, following = gm.open_dataset("data/navier_stokes_smoke.zarr", split="test")[0]  # frames are channels
    assert result.rel_l2_by_frame is not None
    draw(following, run.predict(given), result.rel_l2_by_frame)
