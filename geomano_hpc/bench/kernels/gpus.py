"""GPUs by their data sheets, and the least time that counted work takes on one of them.

A bound assumes that everything overlaps with everything and that caches serve nothing: real times are longer, except
that what is read again may come from the L2 cache. Warp instructions are those of 32 threads, on AMD too.
"""

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

LAUNCH = 3e-6  # seconds from one kernel to the next on a stream, at least


@dataclass(frozen=True)
class GPU:
    name: str
    target: str  # that kernels are compiled for
    counted: str  # that instructions are counted for: the same, or sm_80 in the place of AMD's
    multiprocessors: int  # AMD: compute units
    schedulers: int  # of a multiprocessor
    issue: float  # warp instructions of a scheduler and clock
    clock: float  # Hz, boost
    exponentials: int  # results of a multiprocessor and clock
    fp32: int  # FMA lanes of a multiprocessor
    shuffles: float  # warps of shuffles and accesses to shared memory, of a multiprocessor and clock
    bandwidth: float  # bytes a second
    cache: int  # bytes of L2
    registers: int  # of 32 bits, of a multiprocessor
    warps: int  # resident on a multiprocessor
    programs: int  # resident on a multiprocessor
    shared: int  # bytes of shared memory of a multiprocessor
    fp32_flops: float  # of matrix products
    tf32_flops: float  # 0: has none


MB = 1 << 20
# Turing and Ampere (A100) take two clocks for 32 lanes of float32, Hopper and Blackwell one. An MI300X issues one
# instruction of 64 lanes a clock and compute unit. Its registers count 32-bit lanes of vector registers.
GPUS = {
    gpu.name: gpu
    for gpu in (
        GPU("RTX 8000", "sm_75", "sm_75", 72, 4, 1, 1.77e9, 16, 64, 1, 672e9, 6 * MB, 65536, 32, 16, 65536, 16.3e12, 0),
        GPU("A100", "sm_80", "sm_80", 108, 4, 1, 1.41e9, 16, 64, 1, 2039e9, 40 * MB, 65536, 64, 32, 167936, 19.5e12,
            156e12),
        GPU("H100", "sm_90", "sm_90", 132, 4, 1, 1.98e9, 16, 128, 1, 3350e9, 50 * MB, 65536, 64, 32, 233472, 67e12,
            494e12),
        GPU("B200", "sm_100", "sm_100", 148, 4, 1, 1.97e9, 16, 128, 1, 8000e9, 126 * MB, 65536, 64, 32, 233472, 75e12,
            1100e12),
        GPU("MI300X", "gfx942", "sm_80", 304, 4, 0.5, 2.1e9, 16, 64, 1, 5300e9, 256 * MB, 4 * 512 * 64, 64, 32, 65536,
            163e12, 653e12),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Work:
    """What a launch does: warp instructions by class, bytes, and how it is spread."""

    classes: dict[str, float]
    busiest: float  # warp instructions of the program that has most
    programs: int
    warps: int  # of a program
    registers: int  # of a thread
    shared: int
    bytes_moved: float = 0.0

    @property
    def instructions(self) -> float:
        return sum(self.classes.values())


class Occupancy(NamedTuple):
    programs: int  # resident on a multiprocessor, at most
    warps: float  # of a scheduler, over the whole GPU, at most as many as are launched


def occupancy(work: Work, gpu: GPU) -> Occupancy:
    """As registers, shared memory and the sizes of the GPU allow, and as many programs as there are."""
    of_warp = ceil(max(work.registers, 1) * 32 / 256) * 256
    fits = [gpu.registers // (of_warp * work.warps), gpu.warps // work.warps, gpu.programs]
    fits += [gpu.shared // work.shared] if work.shared else []
    resident = max(1, min(fits))
    spread = min(work.programs, resident * gpu.multiprocessors)
    return Occupancy(resident, spread * work.warps / (gpu.multiprocessors * gpu.schedulers))


def bounds(work: Work, gpu: GPU) -> dict[str, float]:
    """Seconds that a launch takes at least, by what bounds it. Where there are fewer warps than schedulers, or fewer
    programs than multiprocessors, the others are idle."""
    whole = gpu.multiprocessors * gpu.schedulers
    schedulers = min(whole, work.programs * work.warps)
    multiprocessors = min(gpu.multiprocessors, work.programs)

    def of(*names: str) -> float:
        return sum(work.classes.get(name, 0.0) for name in names)

    return {
        "issue": work.instructions / (schedulers * gpu.issue * gpu.clock),
        "exp": 32 * of("MUFU") / (schedulers / gpu.schedulers * gpu.exponentials * gpu.clock),
        "fp32": 32 * of("FFMA", "FMUL", "FADD") / (schedulers / gpu.schedulers * gpu.fp32 * gpu.clock),
        "shuffle": of("SHFL", "LDS/STS") / (multiprocessors * gpu.shuffles * gpu.clock),
        "bandwidth": work.bytes_moved / gpu.bandwidth,
        "launch": LAUNCH,
    }


def busiest_multiprocessor(work: Work, gpu: GPU) -> float:
    """Seconds of issue on the multiprocessor with most programs: what is left over when they do not divide evenly."""
    programs = ceil(work.programs / gpu.multiprocessors)
    schedulers = min(gpu.schedulers, programs * work.warps)
    rounds = ceil(programs * work.warps / schedulers) / (programs * work.warps)  # of the warps of a scheduler
    return programs * work.busiest * rounds / (gpu.issue * gpu.clock)
