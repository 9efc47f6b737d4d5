"""Calls of the scan, described without tensors, for which the Triton kernels are compiled ahead of time."""

from dataclasses import dataclass

NOMINAL_MULTIPROCESSORS = 108  # an A100
USUAL_DSTATE = 16


@dataclass(frozen=True)
class Call:
    """Forward and backward of one scan. `correction` is "equation", "state", or "none" for the vanilla SSM."""

    name: str
    kind: str
    batch: int
    height: int
    width: int
    channels: int
    dstate: int
    rank: int
    orders: str = "paper"
    dtype: str = "float32"
    low_rank: bool = True
    learnable_correction: bool = False
    correction: str = "equation"
    processors: int = NOMINAL_MULTIPROCESSORS
    lanes: int = 32  # of a warp: 64 on AMD's CDNA
    amd: bool = False
    stretch: float = 1.0
    rings: int = 0  # 1 for an axis H that is periodic, and 2 for an axis W
    own: tuple[float, float] = (0.0, 0.0)  # what a point counts more for itself: on another grid than the training's
    hold: tuple[float, float] | None = None  # of an exact zero-order hold, along H and W; (1, 1) on the training's grid

    def __post_init__(self) -> None:
        object.__setattr__(self, "own", tuple(self.own))  # JSON makes lists of tuples
        object.__setattr__(self, "hold", self.hold and tuple(self.hold))

    @property
    def label(self) -> str:
        words = [self.name, self.kind, self.dtype, f"batch {self.batch}"]
        words += [] if self.low_rank else ["full dt"]
        words += ["learnable R"] if self.learnable_correction else []
        words += [] if self.correction == "equation" else [f"correction {self.correction}"]
        words += [] if self.processors == NOMINAL_MULTIPROCESSORS else [f"{self.processors} multiprocessors"]
        words += [] if self.stretch == 1.0 else [f"stretch {self.stretch:g}"]
        words += [("", "ring along H", "ring along W", "rings")[self.rings]] if self.rings else []
        words += [] if self.own == (0.0, 0.0) else [f"own {self.own[0]:g} {self.own[1]:g}"]
        words += [f"hold {self.hold[0]:g} {self.hold[1]:g}"] if self.hold else []
        words += [] if self.dstate == USUAL_DSTATE else [f"dstate {self.dstate}"]
        return ", ".join(words)
