"""What the further settings of a scan cost on a GPU, counted from the machine code of the recipes' scans: points at
another distance than those of the training, rings, an exact hold.

    python -m geomano_hpc.bench.kernels.settings [GPU ...]
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from geomano_hpc.bench import recipes
from geomano_hpc.bench.kernels.gpu_audit import PartAudit, call_of, count_instructions, part_audits
from geomano_hpc.bench.kernels.gpus import GPUS

_HALF: dict[str, Any] = {"own": (0.5, 0.5)}  # points half as far apart as the training's
_HALF_ALONG_H: dict[str, Any] = {"own": (0.5, 0.0), "stretch": 0.5}
# Fields of a Call. A ring along one axis is one more walk over the grid for each pass, two are two.
SETTINGS: dict[str, dict[str, Any]] = {
    "as in training": {},
    "spacing": _HALF,
    "two spacings": _HALF_ALONG_H,
    "ring": {"rings": 1},
    "rings": {"rings": 3},
    "rings, two spacings": {"rings": 3, **_HALF_ALONG_H},
    "exact hold": {"hold": (1.0, 1.0)},
    "exact hold, spacing": {"hold": (2.0, 2.0), **_HALF},
}
OF_SEQUENCES = ("as in training", "spacing", "exact hold", "exact hold, spacing")


def settings_of(name: str) -> Mapping[str, dict[str, Any]]:
    """Those that the scan of a recipe can have."""
    return SETTINGS if recipes.scan(name).kind == "2d" else {word: SETTINGS[word] for word in OF_SEQUENCES}


def audited(name: str, settings: Mapping[str, Any], gpu_name: str = "A100") -> dict[str, PartAudit]:
    """Forward and backward of a recipe's scan with these fields of its Call; where TRITON_INTERPRET is not set."""
    scan, gpu = recipes.scan(name), GPUS[gpu_name]
    call = asdict(replace(call_of(name, scan, gpu), **settings))
    return {audit.part: audit for audit in part_audits(name, scan, gpu, count_instructions(call, gpu_name), [])}


def table(gpus: Sequence[str] = ("A100",)) -> Iterator[str]:
    """Instructions per state update, the registers of the kernel with most, bytes that are spilled."""
    yield f"{'recipe':14} {'setting':20} {'GPU':5} {'part':9} {'instr':>6} {'regs':>5} {'spills':>7}"
    for name in recipes.NAMES:
        for word, settings in settings_of(name).items():
            for gpu in gpus:
                for part, audit in audited(name, settings, gpu).items():
                    registers = max(one.work.registers for one in audit.launches)
                    spills = max(one.spill_bytes for one in audit.launches)
                    yield f"{name:14} {word:20} {gpu:5} {part:9} {audit.per_update:6.1f} {registers:5} {spills:7}"


if __name__ == "__main__":
    for line in table(sys.argv[1:] or ["A100"]):
        print(line, flush=True)
