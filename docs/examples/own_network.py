"""Your own network with `geo_scan`

`geo_scan` is an operator like any other of torch: put it into a network of your own, and train that with your own
loop. Here three layers of it learn to solve the Poisson equation `-Laplace u = f` on the unit square with `u = 0` on
the boundary. The solution at a point depends on `f` everywhere, and scans from the four corners reach every point in
one layer.
"""

import math

import matplotlib.pyplot as plt
import torch
from torch import nn

import geomano_hpc as gm

SIDE = 16  # points per side
K, E, N = 4, 16, 4  # scan directions, channels, hidden states per channel
STEPS = 300


def poisson(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random smooth f and the exact u, [samples, SIDE, SIDE, 1] each: both are sums of sines."""
    k = torch.arange(1, SIDE + 1)
    sines = torch.sin(math.pi * k[:, None] * k[None, :] / (SIDE + 1))
    laplacian = k[:, None] ** 2 + k[None, :] ** 2
    coefficients = torch.randn(samples, SIDE, SIDE) / laplacian
    f, u = (sines @ weights @ sines for weights in (coefficients, coefficients / laplacian))
    return f[..., None], 4 * u[..., None]


class ScanLayer(nn.Module):
    """x + MLP(scan of LayerNorm(x)). Time step, B and C of the scan are projected from x, as in Mamba."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(E)
        self.project = nn.Linear(E, K * (E + 2 * N))
        self.A_log = nn.Parameter(torch.arange(1.0, N + 1).log().repeat(K, E, 1))
        self.skip = nn.Parameter(torch.ones(K, E))
        self.dt_bias = nn.Parameter(torch.full((K, E), -2.0))
        self.mlp = nn.Sequential(nn.Linear(E, E), nn.GELU(), nn.Linear(E, E))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.norm(x)
        dt, B, C = self.project(z).unflatten(-1, (K, -1)).split([E, N, N], dim=-1)
        A = -self.A_log.exp()
        y = gm.geo_scan(z, dt, A, B, C, D=self.skip, R=None, dt_bias=self.dt_bias, orders="corners", kind="2d")
        return x + self.mlp(y)


def relative_l2(guess: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    return ((guess - truth).flatten(1).norm(dim=1) / truth.flatten(1).norm(dim=1)).mean()


torch.manual_seed(0)
network = nn.Sequential(nn.Linear(1, E), ScanLayer(), ScanLayer(), ScanLayer(), nn.Linear(E, 1))
optimizer = torch.optim.AdamW(network.parameters())
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=STEPS)
losses = []
for _ in range(STEPS):
    f, u = poisson(8)
    loss = relative_l2(network(f), u)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    losses.append(loss.item())

f, u = poisson(32)
with torch.no_grad():
    predicted = network(f)
print(f"relative L2 error on 32 new samples: {relative_l2(predicted, u):.3f}")

figure, axes = plt.subplots(1, 4, figsize=(11, 2.9), layout="constrained", width_ratios=[1.5, 1, 1, 1])
axes[0].semilogy(losses)
axes[0].set(title="training loss", xlabel="step", ylabel="relative L2")
axes[0].grid(alpha=0.3, which="both")
largest = float(u[0].abs().max())
for axis, field, title in zip(axes[1:], (f, u, predicted), ("f", "u", "prediction"), strict=True):
    limit = float(f[0].abs().max()) if title == "f" else largest
    axis.imshow(field[0, ..., 0], cmap="RdBu_r", vmin=-limit, vmax=limit)
    axis.set(title=title, xticks=[], yticks=[])
figure.savefig("own_network.png", dpi=150)
