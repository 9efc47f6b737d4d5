"""The card of a store: all that training, evaluation, prediction and report know of a problem."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

FORMAT = 3
READABLE = (1, 2, 3)  # 1 had only two arrays; 2 knew three problems by name
BOUNDARIES = ("periodic", "wall", "open", "unknown")

Values = TypeVar("Values", bound=Any)  # a numpy array or a torch tensor


@dataclass(frozen=True)
class Normaliser:
    """Mean and standard deviation of a field over the training split and all points, as in the benchmark; of several
    fields on the last axis, one of each, or one number where they are the same.

    Examples:
        >>> from geomano_hpc import Normaliser
        >>> normaliser = Normaliser(mean=2.0, std=0.5)
        >>> normaliser.encode(3.0), normaliser.decode(2.0)
        (2.0, 3.0)
    """

    mean: float | tuple[float, ...]
    std: float | tuple[float, ...]

    def encode(self, field: Values) -> Values:
        return (field - _beside(self.mean, field)) / _beside(self.std, field)

    def decode(self, field: Values) -> Values:
        return field * _beside(self.std, field) + _beside(self.mean, field)

    @staticmethod
    def of(fields: Sequence["Field"]) -> "Normaliser":
        """One number where all are the same: the bits of the benchmark's."""
        if len({(one.mean, one.std) for one in fields}) == 1:
            return Normaliser(fields[0].mean, fields[0].std)
        return Normaliser(tuple(one.mean for one in fields), tuple(one.std for one in fields))

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> "Normaliser":
        mean, std = (tuple(value) if isinstance(value, list) else value for value in (content["mean"], content["std"]))
        return Normaliser(mean, std)


def _beside(value: float | tuple[float, ...], field: Any) -> Any:
    """A number, or an array of the same kind as the field."""
    if not isinstance(value, tuple):
        return value
    if hasattr(field, "new_tensor"):
        return field.new_tensor(value)
    import numpy as np

    return np.asarray(value, getattr(field, "dtype", None))


@dataclass(frozen=True)
class Field:
    """A field, or a constant of a sample, with its statistics over the training split (0 and 1: not normalised)."""

    name: str
    units: str = ""
    mean: float = 0.0
    std: float = 1.0


@dataclass(frozen=True)
class Axis:
    """Point i lies at start + i * spacing, where that is known."""

    name: str
    points: int
    start: float | None = None
    spacing: float | None = None
    boundary: str = "unknown"
    units: str = ""


@dataclass(frozen=True)
class Windows:
    """Pieces of a trajectory: some frames are given, the next ones are to be predicted."""

    frames_in: int
    frames_out: int
    frames: int  # of a trajectory in the store
    stride: int  # frames from the start of one window to that of the next

    @property
    def starts(self) -> range:
        return range(0, self.frames - self.frames_in - self.frames_out + 1, self.stride)


@dataclass(frozen=True)
class StoreCard:
    """What a store says of itself."""

    problem: str
    kind: str
    inputs: tuple[Field, ...]  # channels of an input; of a frame, in a rollout
    targets: tuple[Field, ...]
    splits: dict[str, int]  # train, perhaps validation, test: how many samples, or trajectories
    axes: tuple[Axis, ...]
    provenance: dict[str, Any]
    statics: tuple[Field, ...] = ()  # given fields of a rollout that do not change in time
    constants: tuple[Field, ...] = ()  # numbers of a sample, which a model gets as constant fields
    windows: Windows | None = None
    time: dict[str, Any] = field(default_factory=lambda: {"step": None, "units": ""})
    normalised: bool = True
    protocol: str | None = None  # of the benchmark, whose numbers are published; None for any other problem
    format: int = FORMAT

    @property
    def train_samples(self) -> int:
        return self.splits["train"]

    @property
    def test_samples(self) -> int:
        return self.splits["test"]

    @property
    def stores_frames(self) -> bool:
        """Windows are indexed, not copied. The benchmark has one window of each trajectory: an input and a target."""
        return self.kind == "rollout" and self.protocol is None

    @property
    def is_line(self) -> bool:
        return len(self.axes) == 1

    @property
    def context(self) -> tuple[Field, ...]:
        """What a model gets beside the fields that it predicts from: the same at every step of a rollout."""
        return (*self.statics, *self.constants)

    @property
    def boundary(self) -> tuple[str, ...]:
        """Along each axis of the arrays; a line has a first axis of one point."""
        known = tuple(axis.boundary for axis in self.axes)
        return ("unknown", *known) if self.is_line else known

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(content: Mapping[str, Any], shape_of: Callable[[str], Sequence[int]]) -> "StoreCard":
        """`shape_of` gives the shapes of the arrays, for what older formats did not say."""
        if content["format"] < FORMAT:
            return _older(content, {name: shape_of(name) for name in ("input", "target")})
        names = ("inputs", "targets", "statics", "constants")
        fields = {name: tuple(Field(**one) for one in content[name]) for name in names}
        axes = tuple(Axis(**one) for one in content["axes"])
        windows = None if content["windows"] is None else Windows(**content["windows"])
        return StoreCard(**{**content, **fields, "axes": axes, "windows": windows})


def _older(content: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]) -> StoreCard:
    """Formats 1 and 2: one of three problems, a scalar normaliser for each array."""
    kind, problem, origin = content["task"], content["problem"], content["provenance"]
    keys = origin.get("keys", {})

    def fields(name: str) -> tuple[Field, ...]:
        count, key = (1 if kind == "rollout" else shapes[name][-1]), keys.get(name, name)
        mean, std = content["normalisers"][name]["mean"], content["normalisers"][name]["std"]
        return tuple(Field(key if count == 1 else f"{key}.{n}", "", mean, std) for n in range(count))

    boundary = {"darcy": "wall"}.get(problem, "periodic")
    _, height, width, frames_in = shapes["input"]
    sides = (("x", width),) if height == 1 else (("x", height), ("y", width))
    windows = None
    if kind == "rollout":
        frames_out = shapes["target"][-1]
        windows = Windows(frames_in, frames_out, frames_in + frames_out, frames_out)
    return StoreCard(
        problem,
        kind,
        fields("input"),
        fields("target"),
        {"train": content["train_samples"], "test": content["test_samples"]},
        tuple(Axis(name, points, boundary=boundary) for name, points in sides),
        origin,
        windows=windows,
        normalised=problem != "navier_stokes",
        protocol=problem,
        format=content["format"],
    )
