"""What the package knows of each benchmark: where its fields are in a raw file, how it is split and normalised."""

from dataclasses import dataclass, replace
from typing import Any

from geomano_hpc.errors import ConfigError


@dataclass(frozen=True)
class Problem:
    """How raw fields become the store's `input` and `target`.

    `steady`: one field maps to another. `rollout`: one field with an axis of time, of which the first `input_frames`
    frames are the input and the next `target_frames` the target, predicted one by one.
    """

    name: str
    kind: str
    input_key: str
    target_key: str
    normalise: bool
    train_samples: int = 1000
    test_samples: int = 200
    stride: int = 1
    input_frames: int = 0
    target_frames: int = 0
    axes: str | None = None  # "sample x y", or two of them with a comma: of the input and of the target
    channel: int | None = None  # of a raw field with several


PROBLEMS = {
    "darcy": Problem("darcy", "steady", "coeff", "sol", normalise=True, stride=5),
    "navier_stokes": Problem("navier_stokes", "rollout", "u", "u", normalise=False, input_frames=10, target_frames=10),
    "burgers": Problem("burgers", "steady", "a", "u", normalise=True),
}

# What others call input and target, taken where a file does not hold the names of the FNO authors' files above.
OTHER_KEYS = {
    "steady": (("x", "y"), ("nu", "tensor"), ("tensor", "tensor")),  # neuraloperator, PDEBench
    "rollout": (("tensor", "tensor"), ("data", "data")),
}


def problem(name: str, **changes: int | str | None) -> Problem:
    """A known problem with some of its settings changed; None keeps the default."""
    if name not in PROBLEMS:
        raise ConfigError(f"--problem {name!r} is not known; known problems: {', '.join(PROBLEMS)}")
    given: dict[str, Any] = {key: value for key, value in changes.items() if value is not None}
    return replace(PROBLEMS[name], **given)


def keys_in(found: list[str], problem: Problem) -> tuple[str, str]:
    """The variables to read from a file that holds `found`: those of the problem, or the names that others use."""
    own = (PROBLEMS[problem.name].input_key, PROBLEMS[problem.name].target_key)
    asked = (problem.input_key, problem.target_key)
    for given, target in (asked, *(OTHER_KEYS[problem.kind] if asked == own else ())):
        if given in found and target in found:
            return given, target
    return asked
