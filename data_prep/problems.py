"""What the package knows of each benchmark: where its fields are in a raw file, how it is split and normalised."""

from dataclasses import dataclass, replace

from geomano_hpc.errors import ConfigError


@dataclass(frozen=True)
class Problem:
    """How raw fields become the store's `input` and `target`.

    `steady`: one field maps to another. `rollout`: one field with time as its last axis, of which the first
    `input_frames` frames are the input and the next `target_frames` the target, predicted one by one.
    """

    name: str
    task: str
    input_key: str
    target_key: str
    normalise: bool
    train_samples: int = 1000
    test_samples: int = 200
    stride: int = 1
    input_frames: int = 0
    target_frames: int = 0


PROBLEMS = {
    "darcy": Problem("darcy", "steady", "coeff", "sol", normalise=True, stride=5),
    "navier_stokes": Problem("navier_stokes", "rollout", "u", "u", normalise=False, input_frames=10, target_frames=10),
}


def problem(name: str, **changes: int | str | None) -> Problem:
    """A known problem with some of its settings changed; None keeps the default."""
    if name not in PROBLEMS:
        raise ConfigError(f"--problem {name!r} is not known; known problems: {', '.join(PROBLEMS)}")
    return replace(PROBLEMS[name], **{key: value for key, value in changes.items() if value is not None})  # type: ignore[arg-type]
