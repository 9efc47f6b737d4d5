"""What can be said about the Triton kernels without a GPU: memory traffic, and the time that a roofline predicts.

Traffic is counted by tensor while Triton's interpreter runs every launch of a call on the recipe's grid, with its tiles
and chunks (an eighth of a sequence), for one sample and direction, and one and two dstates: samples and directions are
alike, and traffic is linear in the number of dstates. The interpreter is chosen when Triton
is imported, so the count runs in a process of its own.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

from geomano_hpc.bench import recipes
from geomano_hpc.bench.child import ONE_THREAD, run_in_child
from geomano_hpc.bench.kernels.problem import Scan
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


def recipe_scans() -> dict[str, Scan]:
    """With the batch of the recipes, and with one that fills the GPU, for which blocks of channels are as wide as
    registers allow."""
    scans = (scan for name in recipes.NAMES for scan in ((name, recipes.scan(name)), (name, recipes.full_scan(name))))
    return {f"{name} {scan.kind} batch {scan.batch}": scan for name, scan in scans}


@dataclass(frozen=True)
class Audit:
    """The traffic of one call, and what it is at least."""

    scan: str
    part: str  # forward or backward
    block: str  # tile and channels of a program
    chunks: int  # of the traversal, the fewest of all passes; 1: nothing is read again
    bytes_by_tensor: dict[str, float]  # loaded and stored, without carries
    carry_bytes: float
    minimum_bytes: float
    exponentials: float
    programs: int
    x_bytes: int

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


def audit_kernels(scans: Mapping[str, Scan], show_progress: bool = False) -> list[Audit]:
    """Count each scan in Triton's interpreter, in a process of its own, two at a time."""
    environment = {**ONE_THREAD, "TRITON_INTERPRET": "1"}

    def counted(name: str) -> list[Audit]:
        rows = run_in_child(count, name, asdict(scans[name]), environment=environment)
        return [Audit(**row) for row in rows]

    with ThreadPoolExecutor(2) as pool, progress("audit", len(scans), shown=show_progress) as advance:
        audits = []
        for name, found in zip(scans, pool.map(counted, scans), strict=True):
            audits += found
            advance(name)
    return audits


def count(name: str, content: dict[str, Any]) -> list[dict[str, Any]]:
    """The audits of a scan's forward and backward; runs where TRITON_INTERPRET is set."""
    import torch

    from geomano_hpc.kernels import order_set
    from geomano_hpc.kernels.audit import traffic
    from geomano_hpc.kernels.inputs import ScanInputs, ScanSettings
    from geomano_hpc.kernels.triton.blocks import NOMINAL_MULTIPROCESSORS, backward_blocks, forward_blocks
    from geomano_hpc.kernels.triton.plan import Plan

    scan = Scan(**content)
    settings = ScanSettings(order_set(scan.orders)[:1], scan.kind, "equation")
    height = scan.height if scan.kind == "2d" else scan.height // 8  # of a sequence, part of it says it all
    grow = scan.height / height

    def inputs(dstate: int, directions: int = 1, height: int = height) -> ScanInputs:
        tensors = replace(scan, batch=1, height=height, dstate=dstate).inputs(torch.float32)
        whole = ScanInputs(**{key: tensor.detach() for key, tensor in tensors.items()})
        few = {key: getattr(whole, key)[..., :directions, :].contiguous() for key in ("dt", "B", "C")}
        few |= {
            key: tensor[:directions].contiguous() for key, tensor in whole._asdict().items() if key not in (*few, "x")
        }
        return whole._replace(**few)

    whole = inputs(scan.dstate, scan.directions, scan.height)
    size = (scan.batch, scan.height, scan.width, scan.channels, scan.rank)
    sizes = (*size, scan.kind, NOMINAL_MULTIPROCESSORS, 4, scan.dstate)
    rows = []
    for part, blocks in (("forward", forward_blocks(*sizes)), ("backward", backward_blocks(*sizes))):
        backwards = part == "backward"
        small = blocks._replace(chunks=max(1, round(blocks.chunks / grow)))
        one, two = (
            traffic.count_backward(inputs(dstate), settings, small, scan.learnable_correction)
            if backwards
            else traffic.count_forward(inputs(dstate), settings, small)
            for dstate in (1, 2)
        )
        scaled = {}
        for key in two:
            # Linear in the number of dstates; the same for every sample. Directions after the first also read y or dx.
            # Programs read and write parameters, so without chunks once per sample.
            first = sum(one.get(key, (0,)))
            bytes_all = scan.batch * (first + (scan.dstate - 1) * (sum(two[key]) - first))
            directions = 2 * scan.directions - 1 if key in ("y", "dx") else scan.directions
            scaled[key] = bytes_all * directions * (1.0 if key in _PARAMETERS and blocks.chunks == 1 else grow)
        passes = _passes(Plan(whole, settings), blocks, backwards)
        chunks = min(chunks for chunks, _ in passes)
        minimum = scan.batch * traffic.minimum_forward(whole, chunked=chunks > 1)
        if backwards:
            minimum = scan.batch * traffic.minimum_backward(whole, settings, chunks > 1, scan.learnable_correction)
        rows.append(
            asdict(
                Audit(
                    name,
                    part,
                    f"{blocks.tile_h} x {blocks.tile_w} x {blocks.program_channels}",
                    chunks,
                    {key: found for key, found in scaled.items() if key not in traffic.CARRIES},
                    sum(found for key, found in scaled.items() if key in traffic.CARRIES),
                    minimum,
                    scan.updates * len(passes),
                    scan.batch * min(chunks * -(-scan.channels // width) for chunks, width in passes),
                    4 * scan.batch * scan.height * scan.width * scan.channels,
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
        x = audit.x_bytes
        parts = ", ".join(f"{key} {count / x:.2f}" for key, count in audit.bytes_by_tensor.items() if count > 0.005 * x)
        call = f"{audit.scan} {audit.part}"
        lines.append(
            f"{call:44}  {audit.block:15}  {audit.chunks:6}  {audit.ratio:10.2f}  {audit.carry_bytes / x:8.2f}  {parts}"
        )
    return lines


def roofline_table(audits: list[Audit]) -> list[str]:
    lines = [f"{'predicted time of a call':44}" + "".join(f"  {gpu.name:>16}" for gpu in GPUS)]
    for audit in audits:
        line = f"{f'{audit.scan} {audit.part}':44}"
        for gpu in GPUS:
            seconds, bound = audit.seconds(gpu)
            line += f"  {f'{seconds * 1e3:.2f} ms {bound}':>16}"
        lines.append(line)
    return lines
