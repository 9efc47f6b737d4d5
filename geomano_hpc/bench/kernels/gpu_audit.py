"""What can be said about the Triton kernels without a GPU: instructions, registers, occupancy, bytes, launches, and the
least time that they take on a GPU of a table.

Instructions are counted from the machine code of every launch of a call at the recipe's shape (kernels/audit), bytes
while Triton's interpreter runs some programs of each launch. For AMD, instructions are those counted for sm_80, with
AMD's registers and programs: its machine code is compiled and checked for spills, not counted.

Triton's interpreter is chosen when Triton is imported, so bytes and instructions are counted in processes of their own.
"""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from geomano_hpc.atomic import write_json
from geomano_hpc.bench.child import ONE_THREAD, run_in_child
from geomano_hpc.bench.kernels.gpus import GPU, GPUS, LAUNCH, Work, bounds, busiest_multiprocessor, occupancy
from geomano_hpc.bench.kernels.problem import Scan
from geomano_hpc.kernels.audit.calls import Call
from geomano_hpc.kernels.cache import cache_folder
from geomano_hpc.progress import progress

PARTS = ("forward", "backward")
SAMPLED = 3  # programs of a launch whose bytes are counted
_CLASSES = ("FFMA", "FMUL", "FADD", "MUFU", "SHFL", "LDS/STS", "LDG", "STG", "INT", "SETP", "FSEL", "MOV", "BAR", "BRA")


def call_of(name: str, scan: Scan, gpu: GPU = GPUS["A100"]) -> Call:
    """The scan of a recipe, as the backend would plan it for a GPU."""
    return Call(
        name, scan.kind, scan.batch, scan.height, scan.width, scan.channels, scan.dstate, scan.rank, scan.orders,
        learnable_correction=scan.learnable_correction, processors=gpu.multiprocessors,
    )  # fmt: skip


@dataclass(frozen=True)
class LaunchAudit:
    part: str
    step: str
    work: Work
    spill_bytes: int
    by_kind: dict[str, float] = field(default_factory=dict)  # bytes of tensors, partial sums, carries, scratch
    by_tensor: dict[str, float] = field(default_factory=dict)

    def bound(self, gpu: GPU) -> tuple[float, str]:
        found = bounds(self.work, gpu)
        name = max(found, key=lambda key: found[key])
        return found[name], name


@dataclass(frozen=True)
class PartAudit:
    """Forward or backward of a call on a GPU."""

    call: str
    part: str
    gpu: GPU
    launches: list[LaunchAudit]
    torch_kernels: int
    updates: int  # of hidden states in one pass

    @property
    def launch_count(self) -> int:
        return len(self.launches) + self.torch_kernels

    @property
    def classes(self) -> dict[str, float]:
        """Thread instructions per state update, over all passes."""
        found: dict[str, float] = defaultdict(float)
        for launch in self.launches:
            for name, count in launch.work.classes.items():
                found[name] += 32 * count / self.updates
        return dict(found)

    @property
    def per_update(self) -> float:
        return sum(self.classes.values())

    @property
    def issue(self) -> float:
        """Seconds, if only issue slots counted."""
        return sum(bounds(launch.work, self.gpu)["issue"] for launch in self.launches)

    @property
    def busiest(self) -> float:
        """Seconds of issue on the multiprocessor that has most to do."""
        return sum(busiest_multiprocessor(launch.work, self.gpu) for launch in self.launches)

    @property
    def by_kind(self) -> dict[str, float]:
        found: dict[str, float] = defaultdict(float)
        for launch in self.launches:
            for kind, count in launch.by_kind.items():
                found[kind] += count
        return dict(found)

    @property
    def bound(self) -> tuple[float, str]:
        """Seconds at least, launch after launch, and what bounds most of them."""
        times: dict[str, float] = defaultdict(float)
        for launch in self.launches:
            seconds, name = launch.bound(self.gpu)
            times[name] += seconds
        times["launch"] += self.torch_kernels * LAUNCH
        return sum(times.values()), max(times, key=lambda key: times[key])


def audit(
    scans: Mapping[str, Scan], gpu: GPU, with_bytes: bool = True, show_progress: bool = False, programs: int = SAMPLED
) -> list[PartAudit]:
    """Forward and backward of every scan; bytes are counted on some programs of each launch."""
    found = []
    with progress("audit", len(scans), shown=show_progress) as advance:
        for name, scan in scans.items():
            call = asdict(call_of(name, scan, gpu))
            compiled = {**ONE_THREAD, "TRITON_INTERPRET": None}
            counted = run_in_child(count_instructions, call, gpu.name, environment=compiled)
            moved = _bytes_of(counted["key"], call, scan, programs) if with_bytes else []
            found += part_audits(name, scan, gpu, counted, moved)
            advance(name)
    return found


def _bytes_of(key: str, call: dict[str, Any], scan: Scan, programs: int) -> list[dict[str, Any]]:
    """Counted once for the same launches of the same kernels: other GPUs often get the same."""
    path = cache_folder() / "traffic" / f"{key}-{programs}.json"
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))["launches"]
    environment = {**ONE_THREAD, "TRITON_INTERPRET": "1"}
    moved = run_in_child(count_bytes, call, asdict(scan), programs, environment=environment)
    write_json(path, {"launches": moved})
    return moved


def part_audits(
    name: str, scan: Scan, gpu: GPU, counted: Mapping[str, Any], moved: list[dict[str, Any]]
) -> list[PartAudit]:
    launches = []
    for n, row in enumerate(counted["launches"]):
        here = moved[n] if moved else {"kernel": row["kernel"], "from_memory": 0.0, "by_kind": {}, "by_tensor": {}}
        assert here["kernel"] == row["kernel"], "the interpreter launched another kernel than was compiled"
        work = Work(**row["work"], bytes_moved=here["from_memory"])
        launches.append(
            LaunchAudit(row["part"], row["step"], work, row["spill_bytes"], here["by_kind"], here["by_tensor"])
        )
    return [
        PartAudit(
            name,
            part,
            gpu,
            [launch for launch in launches if launch.part == part],
            counted["torch"][part],
            scan.updates,
        )
        for part in PARTS
    ]


def count_instructions(call: dict[str, Any], gpu_name: str) -> dict[str, Any]:
    """Every launch of a call with its warp instructions; runs where TRITON_INTERPRET is not set."""

    from geomano_hpc.kernels.audit.compilation import TARGETS, for_target, instructions_of, known, launches_key
    from geomano_hpc.kernels.audit.variants import launches_of

    gpu, described = GPUS[gpu_name], Call(**call)
    found = launches_of(described)
    lanes = TARGETS[gpu.target][2]
    planned = found if lanes == 32 else launches_of(for_target(described, gpu.target))
    rows = []
    for n, launch in enumerate(found.launches):
        counted, own = instructions_of(launch, gpu.counted), launch
        if gpu.counted != gpu.target and len(planned.launches) == len(found.launches):
            own = planned.launches[n]
        row = known(own.variant, gpu.target)
        # Where AMD has other programs, a program executes its share.
        work = Work(
            counted.classes, counted.busiest * launch.programs / own.programs, own.programs,
            own.variant.warps * lanes // 32, row.registers, row.shared_bytes,
        )  # fmt: skip
        content = asdict(work)
        del content["bytes_moved"]
        rows.append({
            "part": launch.part, "step": launch.step, "kernel": launch.variant.kernel, "work": content,
            "spill_bytes": row.spill_bytes,
        })  # fmt: skip
    torch_kernels = {part: len(found.of(part).torch_kernels) for part in PARTS}
    return {"launches": rows, "torch": torch_kernels, "key": launches_key(found.launches)}


def count_bytes(call: dict[str, Any], content: dict[str, Any], programs: int = SAMPLED) -> list[dict[str, Any]]:
    """What every launch of a call moves; runs where TRITON_INTERPRET is set."""
    import torch

    from geomano_hpc.kernels import order_set
    from geomano_hpc.kernels.audit import traffic
    from geomano_hpc.kernels.audit.variants import nominal_gpu
    from geomano_hpc.kernels.inputs import ScanInputs, ScanSettings
    from geomano_hpc.kernels.triton import scan as triton_scan

    scan = Scan(**content)
    settings = ScanSettings(order_set(scan.orders), scan.kind, "equation")
    # Tensors of their own, so that an address says which tensor it is in.
    inputs = ScanInputs(**{name: t.detach().contiguous() for name, t in scan.inputs(torch.float32).items()})
    with nominal_gpu(Call(**call)), traffic.counting(programs) as found:
        y, carries = triton_scan.forward(inputs, settings, True)
        triton_scan.backward(torch.ones_like(y), inputs, settings, carries, scan.learnable_correction)
    return [
        {
            "kernel": launch.kernel,
            "from_memory": launch.from_memory,
            "by_kind": launch.by_kind,
            "by_tensor": {name: sum(count) for name, count in launch.by_tensor.items()},
        }
        for launch in found
    ]


def bounds_for(name: str, scan: Scan) -> dict[str, float]:
    """Milliseconds that forward and backward of a scan take at least on a GPU, by the name that torch gives it; nothing
    for one that is not in the table. Without bytes: counting them takes minutes."""
    gpu = next((gpu for gpu in GPUS.values() if gpu.name.lower() in name.lower()), None)
    if gpu is None:
        return {}
    return {found.part: 1e3 * found.bound[0] for found in audit({"scan": scan}, gpu, with_bytes=False)}


def launch_table(audits: list[PartAudit]) -> list[str]:
    """Each launch: what it takes of the GPU and what bounds it."""
    lines = [
        f"{'launch':62}  {'instr':>6}  {'regs':>4}  {'spills':>6}  {'programs':>8}  {'resident':>8}"
        f"  {'warps/sched':>11}  {'MB':>7}  {'us':>8}  bound by"
    ]
    for audit in audits:
        for launch in audit.launches:
            work, taken = launch.work, occupancy(launch.work, audit.gpu)
            seconds, name = launch.bound(audit.gpu)
            lines.append(
                f"{f'{audit.call} {audit.part}: {launch.step}':62}  {32 * work.instructions / audit.updates:6.2f}"
                f"  {work.registers:4}  {launch.spill_bytes:6}  {work.programs:8}  {taken.programs:8}"
                f"  {taken.warps:11.2f}  {sum(launch.by_kind.values()) / 1e6:7.1f}  {seconds * 1e6:8.1f}  {name}"
            )
    return lines


def class_table(audits: list[PartAudit]) -> list[str]:
    """Thread instructions per state update by class, over all passes of a call."""
    lines = [
        f"{'instructions per state update':32}  {'all':>6}" + "".join(f"  {name:>7}" for name in _CLASSES) + "    other"
    ]
    for audit in audits:
        classes = audit.classes
        rest = sum(count for name, count in classes.items() if name not in _CLASSES)
        counts = "".join(f"  {classes.get(name, 0.0):7.2f}" for name in _CLASSES)
        lines.append(f"{f'{audit.call} {audit.part}':32}  {audit.per_update:6.2f}{counts}  {rest:7.2f}")
    return lines


def bound_table(audits: list[PartAudit]) -> list[str]:
    """A call: launches, bytes by kind, and its bound. `issue` alone, and on the busiest multiprocessor, beside it."""
    kinds = ("tensors", "partials", "carries", "scratch")
    lines = [
        f"{'call':32}  {'GPU':8}  {'launches':>8}" + "".join(f"  {f'{kind} MB':>11}" for kind in kinds)
        + f"  {'issue ms':>8}  {'busiest ms':>10}  {'bound ms':>8}  bound by"
    ]  # fmt: skip
    for audit in audits:
        seconds, name = audit.bound
        moved = "".join(f"  {audit.by_kind.get(kind, 0.0) / 1e6:11.1f}" for kind in kinds)
        lines.append(
            f"{f'{audit.call} {audit.part}':32}  {audit.gpu.name:8}  {audit.launch_count:8}{moved}"
            f"  {audit.issue * 1e3:8.3f}  {audit.busiest * 1e3:10.3f}  {seconds * 1e3:8.3f}  {name}"
        )
    return lines
