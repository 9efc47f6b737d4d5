"""What can be said about the Triton kernels without a GPU: memory traffic, and the time that a roofline predicts.

Traffic is counted by tensor while Triton's interpreter runs every launch of a call on the recipe's grid, with its tiles
and chunks (an eighth of a sequence), for one sample and direction, and one and two dstates: samples and directions are
alike, and traffic is linear in the number of dstates. The interpreter is chosen when Triton
is imported, so the count runs in a process of its own.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from geomano_hpc.bench.kernels.problem import SHAPES, Shape
from geomano_hpc.errors import GeomanoError
from geomano_hpc.progress import progress

_LEARNS_R = {"darcy": False, "navier_stokes": True}  # the correction of the recipes: a fixed mask has no gradient
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
    chunks: int  # of the traversal, the fewest of all passes; 1: nothing is read again
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

    from geomano_hpc.kernels import order_set
    from geomano_hpc.kernels.audit import traffic as triton_traffic
    from geomano_hpc.kernels.inputs import ScanInputs, ScanSettings
    from geomano_hpc.kernels.triton.blocks import NOMINAL_MULTIPROCESSORS, backward_blocks, forward_blocks
    from geomano_hpc.kernels.triton.plan import Plan

    recipe = SHAPES[name]
    settings = ScanSettings(order_set("paper")[:1], kind, "equation")
    height = recipe.height if kind == "2d" else recipe.height // 8  # of a sequence, part of it says it all
    grow = recipe.height / height

    def inputs(channels: int, dstate: int, directions: int = 1, height: int = height) -> ScanInputs:
        tensors = Shape(1, height, recipe.width, channels, dstate, recipe.rank).inputs(torch.float32)
        whole = ScanInputs(**{key: tensor.detach() for key, tensor in tensors.items()})
        few = {key: getattr(whole, key)[..., :directions, :].contiguous() for key in ("dt", "B", "C")}
        few |= {
            key: tensor[:directions].contiguous() for key, tensor in whole._asdict().items() if key not in (*few, "x")
        }
        return whole._replace(**few)

    whole = inputs(recipe.channels, recipe.dstate, recipe.directions, recipe.height)
    updates = batch * recipe.height * recipe.width * recipe.channels * recipe.dstate * recipe.directions
    sizes = (batch, recipe.height, recipe.width, recipe.channels, recipe.rank, kind, NOMINAL_MULTIPROCESSORS)
    rows = []
    for part, blocks in (("forward", forward_blocks(*sizes)), ("backward", backward_blocks(*sizes))):
        backwards = part == "backward"
        small = blocks._replace(chunks=max(1, round(blocks.chunks / grow)))
        one, two = (
            triton_traffic.count_backward(given, settings, small, _LEARNS_R[name])
            if backwards
            else triton_traffic.count_forward(given, settings, small)
            for given in (inputs(recipe.channels, dstate) for dstate in (1, 2))
        )
        scaled = {}
        for key in two:
            # Linear in the number of dstates; the same for every sample. Directions after the first also read y or dx.
            # Programs read and write parameters, so without chunks once per sample.
            first = sum(one.get(key, (0,)))
            bytes_all = batch * (first + (recipe.dstate - 1) * (sum(two[key]) - first))
            directions = 2 * recipe.directions - 1 if key in ("y", "dx") else recipe.directions
            scaled[key] = bytes_all * directions * (1.0 if key in _PARAMETERS and blocks.chunks == 1 else grow)
        passes = _passes(Plan(whole, settings), blocks, backwards)
        chunks = min(chunks for chunks, _ in passes)
        minimum = batch * triton_traffic.minimum_forward(whole, chunked=chunks > 1)
        if backwards:
            minimum = batch * triton_traffic.minimum_backward(whole, settings, chunks > 1, _LEARNS_R[name])
        rows.append(
            asdict(
                Audit(
                    name,
                    kind,
                    batch,
                    part,
                    f"{blocks.tile_h} x {blocks.tile_w} x {blocks.program_channels}",
                    chunks,
                    {key: count for key, count in scaled.items() if key not in triton_traffic.CARRIES},
                    sum(count for key, count in scaled.items() if key in triton_traffic.CARRIES),
                    minimum,
                    updates * len(passes),
                    batch * min(chunks * -(-recipe.channels // width) for chunks, width in passes),
                )
            )
        )
    return rows


def _passes(plan: Any, blocks: Any, backwards: bool) -> list[tuple[int, int]]:
    """Passes over the tiles, each with its exponentials: the programs side by side in a sample, and their channels."""
    order, sweep = plan.settings.orders[0], blocks.for_sweeps.channels
    forth = plan.forth(order, blocks)
    if plan.two_d and backwards:
        states, adjoint = (plan.strips(order, blocks, adjoint).chunks for adjoint in (False, True))
        if blocks.chunks == 1:
            return [(1, sweep), (1, blocks.program_channels)]
        return [(states, sweep), (adjoint, sweep), (forth.tiles, blocks.program_channels)]
    main = (forth.chunks, blocks.program_channels)
    return [main, (forth.chunks, sweep)] if forth.chunks > 1 else [main]


def traffic_table(audits: list[Audit]) -> list[str]:
    """Bytes in units of x, so that shapes compare."""
    lines = [
        f"{'call':44}  {'tile x channels':15}  chunks  {'of minimum':>10}  {'carries':>8}  by tensor, in units of x"
    ]
    for audit in audits:
        shape = SHAPES[audit.shape]
        x = 4 * audit.batch * shape.height * shape.width * shape.channels
        parts = ", ".join(f"{key} {count / x:.2f}" for key, count in audit.bytes_by_tensor.items() if count > 0.005 * x)
        call = f"{audit.shape} {audit.kind} batch {audit.batch} {audit.part}"
        lines.append(
            f"{call:44}  {audit.block:15}  {audit.chunks:6}  {audit.ratio:10.2f}  {audit.carry_bytes / x:8.2f}  {parts}"
        )
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
