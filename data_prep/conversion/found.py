"""A source of the problem, found in one raw file: its variable, the names of its axes, the frames that are kept."""

from dataclasses import dataclass

from geomano_hpc.data_prep.conversion.axes import axes_of, frames_of
from geomano_hpc.data_prep.conversion.sources import Source
from geomano_hpc.data_prep.problems import Problem
from geomano_hpc.data_prep.readers.variable import Variable


@dataclass(frozen=True)
class Found:
    source: Source
    role: str  # input or target
    variable: Variable
    axes: tuple[str, ...]
    frames: range  # kept of those of the file

    @staticmethod
    def of(source: Source, role: str, variable: Variable, problem: Problem) -> "Found":
        where = f"{variable.path}: {variable.key!r}"
        axes = axes_of(variable, source.name, role, problem, where)
        return Found(source, role, variable, axes, frames_of(axes, variable.shape, role, problem, where))

    @property
    def where(self) -> str:
        return f"{self.variable.path}: {self.variable.key!r}"

    @property
    def sizes(self) -> dict[str, int]:
        return dict(zip(self.axes, self.variable.shape, strict=True))

    def chosen_channel(self, problem: Problem) -> int | None:
        """None: all of them."""
        if self.source.channel is not None:
            return self.source.channel
        return problem.channel if "c" in self.axes else None
