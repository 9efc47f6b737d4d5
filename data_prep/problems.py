"""How raw files become a store: which fields are read, what is kept of them, how samples are split.

The three problems of the benchmark are settings like any other; what they have of their own is that numbers are
published for them (`protocol`).
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from geomano_hpc.data_prep.conversion.sources import Constant, Source, parse_constant, parse_source
from geomano_hpc.data_prep.conversion.splits import SplitRule
from geomano_hpc.data_prep.store_card import BOUNDARIES
from geomano_hpc.errors import ConfigError

KINDS = ("steady", "rollout")
ALL_AXES = "*"  # in `boundary` and `spacing`: of each axis that is not named


@dataclass(frozen=True)
class Problem:
    """`steady`: the inputs map to the targets. `rollout`: the targets are fields with an axis of time, of which some
    frames are given and the next ones are predicted; inputs are further given fields, which do not change in time."""

    name: str
    kind: str
    targets: tuple[Source, ...]
    inputs: tuple[Source, ...] = ()
    constants: tuple[Constant, ...] = ()
    splits: SplitRule = field(default_factory=SplitRule)
    stride: int = 1
    frames_in: int = 0
    frames_out: int = 0
    time_stride: int = 1
    window_stride: int | None = None
    axes: str | None = None  # "sample x y", or two of them with a comma: of the input and of the target
    field_axes: dict[str, str] = field(default_factory=dict)  # by field; goes before `axes`
    channel: int | None = None  # of a raw field with several
    boundary: dict[str, str] = field(default_factory=dict)  # by axis; goes before what the file says
    spacing: dict[str, float] = field(default_factory=dict)
    time_step: float | None = None
    units: dict[str, str] = field(default_factory=dict)  # by field
    normalise: bool = True
    protocol: str | None = None  # the benchmark's name of it
    point_offset: float | None = None  # of the benchmark: n points along a side lie at (i + offset) / n

    @property
    def stores_frames(self) -> bool:
        """Windows are indexed, not copied. The benchmark has one window of each trajectory: an input and a target."""
        return self.kind == "rollout" and self.protocol is None

    def to_json(self) -> dict[str, Any]:
        content = asdict(self)
        for one in (*content["inputs"], *content["targets"]):
            one["file"] = None if one["file"] is None else Path(one["file"]).name
        for split in ("train", "validation", "test"):
            value = content["splits"][split]
            content["splits"][split] = str(value) if isinstance(value, Path) else value
        return dict(json.loads(json.dumps(content)))  # lists, as they are read back

    @staticmethod
    def from_json(content: Mapping[str, Any], folder: Path) -> "Problem":
        """As a store keeps it; `folder` is where the raw files are."""
        sources = {
            name: tuple(Source(**{**one, "file": one["file"] and folder / one["file"]}) for one in content[name])
            for name in ("inputs", "targets")
        }
        constants = tuple(Constant(**one) for one in content["constants"])
        return Problem(**{**content, **sources, "constants": constants, "splits": SplitRule(**content["splits"])})


BENCHMARK_SIZES = {"train": 1000, "test": 200}


def _benchmark(name: str, kind: str, given: str, target: str, **settings: Any) -> Problem:
    inputs = (Source(given, given),) if kind == "steady" else ()
    return Problem(
        name, kind, (Source(target, target),), inputs, splits=SplitRule(**BENCHMARK_SIZES), protocol=name, **settings
    )


_WALLS, _TORUS = {"x": "wall", "y": "wall"}, {"x": "periodic", "y": "periodic"}
BENCHMARK = {
    "darcy": _benchmark("darcy", "steady", "coeff", "sol", stride=5, boundary=_WALLS, point_offset=0.5),
    "navier_stokes": _benchmark(
        "navier_stokes",
        "rollout",
        "u",
        "u",
        normalise=False,  # as the benchmark has it
        frames_in=10,
        frames_out=10,
        window_stride=10,
        boundary=_TORUS,
        time_step=1.0,
        point_offset=0.0,
    ),
    "burgers": _benchmark("burgers", "steady", "a", "u", boundary={"x": "periodic"}, point_offset=0.0),
}

# What others call input and target, taken where a file does not hold the names of the FNO authors' files above.
_OTHER_KEYS = {
    "steady": (("x", "y"), ("nu", "tensor"), ("tensor", "tensor")),  # neuraloperator, PDEBench
    "rollout": (("tensor", "tensor"), ("data", "data")),
}


def problem(name: str, **changes: Any) -> Problem:
    """A problem of the benchmark with some of its settings changed; None keeps the default. Sizes and variables may be
    given as `train_samples`, `test_samples`, `input_key`, `target_key`."""
    if name not in BENCHMARK:
        known = ", ".join((*BENCHMARK, *KINDS))
        raise ConfigError(f"--problem {name!r} is not known; choose one of {known} (steady and rollout for your own)")
    base = BENCHMARK[name]
    given = {key: value for key, value in changes.items() if value is not None}
    train, test = given.pop("train_samples", base.splits.train), given.pop("test_samples", base.splits.test)
    given.setdefault("splits", replace(base.splits, train=train, test=test))
    for key, role in (("input_key", "inputs"), ("target_key", "targets")):
        if key in given and not (base.kind == "rollout" and role == "inputs"):
            given[role] = (Source(given[key], given[key]),)
        given.pop(key, None)
    return replace(base, **given)


_OF_FRAMES = ("frames_in", "frames_out", "window_stride", "time_stride", "time_step")


def own_problem(
    kind: str,
    name: str,
    inputs: list[str],
    targets: list[str],
    constants: list[str],
    splits: SplitRule,
    **settings: Any,
) -> Problem:
    """A problem of one's own, from the words of the command line; None keeps the default."""
    if kind not in KINDS:
        raise ConfigError(f"--problem {kind!r}: a problem of your own is one of {', '.join(KINDS)}")
    if name in BENCHMARK:
        raise ConfigError(
            f"--name {name} (by default the name of --out): that is the benchmark's; call yours otherwise, or use "
            f"--problem {name}"
        )
    given = {key: value for key, value in settings.items() if value is not None}
    if kind == "rollout":
        if not targets:
            raise ConfigError("--problem rollout: name the fields to predict with --field, such as --field u --field v")
        if not (given.get("frames_in") and given.get("frames_out")):
            raise ConfigError(
                "--problem rollout: say how many frames are given and predicted: --frames-in, --frames-out"
            )
    elif not (inputs and targets):
        raise ConfigError(
            "--problem steady: name the fields, such as --input k --target p (`geomano data inspect FILE`)"
        )
    elif any(key in given for key in _OF_FRAMES):
        word = next(key for key in _OF_FRAMES if key in given).replace("_", "-")
        raise ConfigError(f"--{word}: --problem steady has no frames; leave it out, or use --problem rollout")
    step = given.get("time_step", 1.0)
    if not 0 < step < math.inf:
        raise ConfigError(f"--time-step {step}: expected a number above 0")
    for where, known in given.get("boundary", {}).items():
        if known not in BOUNDARIES:
            raise ConfigError(f"--boundary {where}={known}: choose one of {', '.join(BOUNDARIES)}")
    return Problem(
        name,
        kind,
        tuple(parse_source(text) for text in targets),
        tuple(parse_source(text) for text in inputs),
        tuple(parse_constant(text) for text in constants),
        splits,
        **given,
    )


def with_names_found(problem: Problem, found: list[str]) -> Problem:
    """Of the benchmark: the variables of a file that holds `found`, which may have the names that others use."""
    if problem.protocol is None:
        return problem
    own, asked = (
        tuple(one.key for one in (*some.inputs, *some.targets)) for some in (BENCHMARK[problem.protocol], problem)
    )
    if asked != own or all(key in found for key in asked):
        return problem
    for given, target in _OTHER_KEYS[problem.kind]:
        if given in found and target in found:
            inputs = (Source(given, given),) if problem.inputs else ()
            return replace(problem, inputs=inputs, targets=(Source(target, target),))
    return problem
