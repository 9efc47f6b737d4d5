"""What can be said about the Triton kernels without a GPU: memory traffic, and the time that a roofline predicts.

Traffic is counted by tensor while Triton's interpreter runs the kernels on a small grid with the block sizes of the
recipe, and scaled to the recipe's grid: what belongs to positions grows with them, parameters do not. The interpreter
is chosen when Triton is imported, so the count runs in a process of its own.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from geomano_hpc.bench.scan_problem import SHAPES, Shape
from geomano_hpc.errors import GeomanoError
from geomano_hpc.progress import progress

_PARAMETERS = ("A", "D", "R", "bias", "weight", "dA", "dR", "dD", "dbias", "dweight")


@dataclass(frozen=True)
class GPU:
    """Bytes per second from memory, and exponentials per second: units per multiprocessor and clock x clock."""

    name: str
    bandwidth: float
    exponentials: float
    multiprocessors: int


# Data sheets: memory bandwidth; 16 special-function results per multiprocessor (compute unit) and clock; boost clock.
GPUS = [
    GPU("RTX 8000", 672e9, 72 * 16 * 1.77e9, 72),
    GPU("A100", 2039e9, 108 * 16 * 1.41e9, 108),
    GPU("H100", 3350e9, 132 * 16 * 1.83e9, 132),
    GPU("MI300X", 5300e9, 304 * 16 * 2.1e9, 304),
]

# The batch of the recipes, and one that fills the GPU, for which blocks of channels are as wide as registers allow.
CASES = [("darcy", "2d", 4), ("darcy", "2d", 256), ("navier_stokes", "1d", 2), ("navier_stokes", "1d", 64)]


@dataclass(frozen=True)
class Audit:
    """The traffic of one call, and what it is at least."""

    shape: str
    kind: str
    batch: int
    part: str  # forward or backward
    block: str  # tile and channels of a program
    bytes_by_tensor: dict[str, float]  # loaded and stored, without carries
    carry_bytes: float
    minimum_bytes: float
    exponentials: float
    programs: int

    @property
    def ratio(self) -> float:
        return sum(self.bytes_by_tensor.values()) / self.minimum_bytes

    def seconds(self, gpu: GPU) -> tuple[float, str]:
        """The roofline's time and what bounds it. Repeated reads are taken from memory, though caches serve many; where
        there are fewer programs than multiprocessors, only their share of the GPU works."""
        share = min(1.0, self.programs / gpu.multiprocessors)
        memory = (sum(self.bytes_by_tensor.values()) + self.carry_bytes) / (share * gpu.bandwidth)
        exp = self.exponentials / (share * gpu.exponentials)
        return max(memory, exp), "memory" if memory > exp else "exp"


def audit_kernels(cases: list[tuple[str, str, int]], show_progress: bool = False) -> list[Audit]:
    """Count each case in Triton's interpreter, in a process of its own, two at a time."""
    with ThreadPoolExecutor(2) as pool, progress("audit", len(cases), shown=show_progress) as advance:
        audits = []
        for case, found in zip(cases, pool.map(_audit, cases), strict=True):
            audits += found
            advance(f"{case[0]} {case[1]} batch {case[2]}")
    return audits


def _audit(case: tuple[str, str, int]) -> list[Audit]:
    command = [sys.executable, "-m", __name__, json.dumps(case)]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if found.returncode:
        raise GeomanoError(f"counting the traffic failed: {(found.stderr.strip().splitlines() or ['?'])[-1]}")
    return [Audit(**row) for row in json.loads(found.stdout)]


def _count(name: str, kind: str, batch: int) -> list[dict[str, Any]]:
    import torch

    from geomano_hpc.kernels import order_set, triton_traffic
    from geomano_hpc.kernels.inputs import ScanInputs, ScanSettings
    from geomano_hpc.kernels.triton_blocks import NOMINAL_MULTIPROCESSORS, backward_blocks, forward_blocks

    recipe = SHAPES[name]
    settings = ScanSettings(order_set("corners"), kind, "equation")  # row-major all: a tile turns with its order
    updates = batch * recipe.height * recipe.width * recipe.channels * recipe.dstate * recipe.directions
    sizes = (batch, recipe.channels, recipe.rank, kind, NOMINAL_MULTIPROCESSORS)
    rows = []
    for part, blocks in (("forward", forward_blocks(*sizes)), ("backward", backward_blocks(*sizes))):
        # Whole tiles, so that none hangs over an edge; in 2D two by two, of which half the edges carry something.
        height, width = (2 * blocks.tile_h, 2 * blocks.tile_w) if kind == "2d" else (8, 16)
        edges = 1 / blocks.tile_h + 1 / blocks.tile_w
        carrying = edges - 1 / recipe.height - 1 / recipe.width
        inner = 2 * carrying / edges if kind == "2d" else 1.0
        small = Shape(1, height, width, recipe.channels, recipe.dstate, recipe.rank)
        tensors = small.inputs(torch.float32).items()
        inputs = ScanInputs(**{key: tensor.detach().contiguous() for key, tensor in tensors})
        grow = batch * recipe.height * recipe.width / (height * width)
        if part == "forward":
            counted = triton_traffic.count_forward(inputs, settings, True, blocks)
            minimum = triton_traffic.minimum_forward(inputs)
        else:
            counted = triton_traffic.count_backward(inputs, settings, blocks)
            minimum = triton_traffic.minimum_backward(inputs, settings)
        # The minimum counts parameters once per sample, and once more for their gradients.
        parameters = sum(
            t.nbytes for t in (inputs.A, inputs.D, inputs.R, inputs.dt_bias, inputs.dt_weight) if t is not None
        )
        parameters *= 1 if part == "forward" else 2
        scaled = {key: sum(count) * (batch if key in _PARAMETERS else grow) for key, count in counted.items()}
        rows.append(
            asdict(
                Audit(
                    name,
                    kind,
                    batch,
                    part,
                    f"{blocks.tile_h} x {blocks.tile_w} x {blocks.channels}",
                    {key: count for key, count in scaled.items() if key not in triton_traffic.CARRIES},
                    inner * sum(count for key, count in scaled.items() if key in triton_traffic.CARRIES),
                    (minimum - parameters) * grow + parameters * batch,
                    updates * (2 if part == "backward" and kind == "2d" else 1),
                    batch * -(-recipe.channels // blocks.channels),
                )
            )
        )
    return rows


def traffic_table(audits: list[Audit]) -> list[str]:
    """Bytes in units of x, so that shapes compare."""
    lines = [f"{'call':44}  {'tile x channels':15}  {'of minimum':>10}  {'carries':>8}  by tensor, in units of x"]
    for audit in audits:
        shape = SHAPES[audit.shape]
        x = 4 * audit.batch * shape.height * shape.width * shape.channels
        parts = ", ".join(f"{key} {count / x:.2f}" for key, count in audit.bytes_by_tensor.items() if count > 0.005 * x)
        call = f"{audit.shape} {audit.kind} batch {audit.batch} {audit.part}"
        lines.append(f"{call:44}  {audit.block:15}  {audit.ratio:10.2f}  {audit.carry_bytes / x:8.2f}  {parts}")
    return lines


def roofline_table(audits: list[Audit]) -> list[str]:
    lines = [f"{'predicted time of a call':44}" + "".join(f"  {gpu.name:>16}" for gpu in GPUS)]
    for audit in audits:
        line = f"{f'{audit.shape} {audit.kind} batch {audit.batch} {audit.part}':44}"
        for gpu in GPUS:
            seconds, bound = audit.seconds(gpu)
            line += f"  {f'{seconds * 1e3:.2f} ms {bound}':>16}"
        lines.append(line)
    return lines


if __name__ == "__main__":
    print(json.dumps(_count(*json.loads(sys.argv[1]))))
