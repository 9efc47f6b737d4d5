"""Bring your data

Three problems of one's own, from raw files to an error for each field:

- a steady one: the heat that goes into two plates gives their temperatures. Two input fields are in a .npy file, two
  target fields in an HDF5 file
- a rollout: vortices in a stream of water, 40 runs in one NetCDF file with a viscosity for each. Pressure, in Pa, is
  thousands of times as large as velocity, and counts no more than that
- a line: Burgers' equation in the layout of PDEBench, from the first frame to the last

The files hold exact solutions. Each of them is inspected, converted, and learned with a recipe that needs no key but
`data.store`: the other keys only make the training small.
"""

import shlex
import subprocess
import sys
from pathlib import Path

import h5py
import matplotlib.pyplot as plt
import numpy as np

import geomano_hpc as gm

SMALL = {"model.depth": 2, "model.embedding": 16, "model.dstate": 8, "training.lr": 1e-2, "training.figures_every": 0}
rng = np.random.default_rng(0)


def geomano(line: str) -> None:
    """Run a command as in a shell."""
    print(f"\n$ geomano {line}", flush=True)
    subprocess.run([sys.executable, "-m", "geomano_hpc", *shlex.split(line)], check=True)


def train(recipe: str, store: str, epochs: int) -> gm.Run:
    keys = {"data.store": store, "training.epochs": epochs, **SMALL}
    result = gm.train(recipe, keys, out=f"runs/{Path(store).stem}")
    print(f"\nrecipe {recipe}, {epochs} epochs: relative L2 error {result.rel_l2:.3f} on the test split")
    for name, error in (result.rel_l2_by_field or {}).items():
        print(f"  {name}: {error:.3f}")
    return gm.load(result.folder)


def steady(axes: list[plt.Axes]) -> None:
    write_plates()
    geomano("data inspect plates.h5")
    geomano(
        "data convert --problem steady --input q1=heat.npy[0] --input q2=heat.npy[1] "
        "--target T1=plates.h5:temperature/upper --target T2=plates.h5:temperature/lower "
        "--axes 'sample x y c, sample x y' --boundary wall --units T1=K --units T2=K --out plates.zarr"
    )
    run = train("steady", "plates.zarr", epochs=10)
    heat, temperature = gm.open_dataset("plates.zarr", split="test")[0]  # [H, W, 2] each
    predicted = run.predict(heat)
    for n, name in enumerate(run.targets):
        draw(axes[2 * n : 2 * n + 2], temperature[..., n], predicted[..., n], f"steady: {name} in K")


def rollout(axes: list[plt.Axes]) -> None:
    write_vortices()
    geomano("data inspect vortices.nc")
    geomano(
        "data convert vortices.nc --problem rollout --field u --field v --field p --constant nu=viscosity "
        "--frames-in 2 --frames-out 4 --boundary periodic --out vortices.zarr"
    )
    run = train("rollout", "vortices.zarr", epochs=10)
    given, following = gm.open_dataset("vortices.zarr", split="test")[0]  # the fields of each frame, frame by frame
    predicted = run.predict(given)
    for some, channel, title in ((axes[:2], -3, "u in m/s"), (axes[2:], -1, "p in Pa")):  # of the last frame
        draw(some, following[..., channel], predicted[..., channel], f"rollout, last frame: {title}")


def line(axis: plt.Axes) -> None:
    write_burgers()
    geomano("data inspect 1D_Burgers_Nu0.01.hdf5")
    geomano(
        "data convert 1D_Burgers_Nu0.01.hdf5 --problem steady --input u0=tensor --target u=tensor --boundary periodic "
        "--out line.zarr"
    )
    run = train("line", "line.zarr", epochs=15)
    u0, u = gm.open_dataset("line.zarr", split="test")[0]  # a line is a grid of one row
    curves = {"t = 0, given": (u0, "0.7"), "t = 0.5, truth": (u, "C0"), "prediction": (run.predict(u0), "C1--")}
    for label, (values, style) in curves.items():
        axis.plot(values[0, :, 0], style, label=label)
    axis.set_title("line: u, by point", fontsize=9)
    axis.legend(fontsize=8)
    axis.grid(alpha=0.3)


def draw(axes: list[plt.Axes], truth: np.ndarray, predicted: np.ndarray, title: str) -> None:
    low, high = float(truth.min()), float(truth.max())
    for axis, field, what in zip(axes, (truth, predicted), (f"{title}, truth", "prediction"), strict=True):
        image = axis.imshow(field.T, origin="lower", interpolation="bilinear", vmin=low, vmax=high)
        axis.set(xticks=[], yticks=[])
        axis.set_title(what, fontsize=9)
        axis.figure.colorbar(image, ax=axis, shrink=0.85).ax.tick_params(labelsize=7)


# The raw files, as other programs leave them.


def write_plates(samples: int = 300, points: int = 16) -> None:
    """-Laplace T1 + 20 (T1 - T2) = q1, and the same of T2, with T = 0 on the edge of the unit square: sums of sines."""
    k = np.arange(1, points + 1)
    sines = np.sin(np.pi * k[:, None] * k / (points + 1))
    squared = np.pi**2 * (k[:, None] ** 2 + k**2)
    heat = rng.standard_normal((samples, 2, points, points)) * 100 / (1 + squared / 50)
    mean, difference = heat.mean(axis=1), heat[:, 0] - heat[:, 1]
    upper, lower = (mean / squared + sign * difference / (squared + 40) / 2 for sign in (1, -1))
    np.save("heat.npy", np.moveaxis(sines @ heat @ sines, 1, -1))  # [sample, x, y, plate]
    with h5py.File("plates.h5", "w") as file:
        file["temperature/upper"], file["temperature/lower"] = sines @ upper @ sines, sines @ lower @ sines


def write_vortices(runs: int = 40, frames: int = 14, points: int = 16) -> None:
    """A stream carries vortices along, and viscosity fades them: waves of one length, which solve the equations of
    Navier and Stokes exactly."""
    axis, t, speed = 2 * np.pi * np.arange(points) / points, 0.05 * np.arange(frames), 4.0
    T, X, Y = np.meshgrid(t, axis, axis, indexing="ij")
    viscosity = rng.uniform(0.01, 0.1, runs)
    u, v, p = np.empty((3, runs, frames, points, points))
    for run, nu in enumerate(viscosity):
        u[run], v[run], stream = speed, 0, np.zeros_like(T)
        for k, m in ((1, 2), (1, -2), (2, 1), (2, -1)):
            phase = k * (X - speed * T) + m * Y + rng.uniform(0, 2 * np.pi)
            height = rng.uniform(0.5, 1.5) * np.exp(-5 * nu * T)
            stream += height * np.sin(phase)
            u[run] += height * m * np.cos(phase)
            v[run] -= height * k * np.cos(phase)
        p[run] = -1000 * ((u[run] - speed) ** 2 + v[run] ** 2 + 5 * stream**2) / 2  # 1000 kg/m^3
    with h5py.File("vortices.nc", "w") as file:
        dimensions = {"run": np.arange(runs), "time": t, "x": axis, "y": axis}
        for name, points_of_it in dimensions.items():
            file[name] = points_of_it
            file[name].make_scale(name)
        for name, values, units in (("u", u, "m/s"), ("v", v, "m/s"), ("p", p, "Pa")):
            file[name] = values
            file[name].attrs["units"] = units
            for place, dimension in enumerate(dimensions):
                file[name].dims[place].attach_scale(file[dimension])
        file["viscosity"] = viscosity


def write_burgers(samples: int = 500, frames: int = 11, points: int = 64, nu: float = 0.01) -> None:
    """u_t + u u_x = nu u_xx on the circle: a heat equation for exp(-integral of u / 2 nu), after Cole and Hopf."""
    x, t = (np.arange(points) + 0.5) / points, np.linspace(0, 0.5, frames)
    modes = np.arange(points // 2 + 1)
    noise = rng.standard_normal((samples, len(modes))) + 1j * rng.standard_normal((samples, len(modes)))
    u0_hat = 0.4 * points * noise * np.exp(-modes) * (modes > 0)
    k = 2j * np.pi * modes
    potential = np.fft.irfft(u0_hat / np.where(modes > 0, k, 1))
    heat = np.fft.rfft(np.exp(-potential / (2 * nu)))[:, None] * np.exp(nu * k**2 * t[:, None])
    with h5py.File("1D_Burgers_Nu0.01.hdf5", "w") as file:
        file["tensor"] = -2 * nu * np.fft.irfft(k * heat) / np.fft.irfft(heat)
        file["x-coordinate"], file["t-coordinate"] = x, t


if __name__ == "__main__":
    rows = [[f"{row}{n}" for n in range(4)] for row in ("steady", "rollout")]
    figure, panels = plt.subplot_mosaic([*rows, ["line"] * 4], figsize=(11, 7.5), layout="constrained")
    steady([panels[name] for name in rows[0]])
    rollout([panels[name] for name in rows[1]])
    line(panels["line"])
    figure.savefig("bring_your_data.png", dpi=150)
