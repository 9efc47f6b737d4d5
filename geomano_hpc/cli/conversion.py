"""The words of `geomano data convert` as the settings of a conversion, and what it says when it is done."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from geomano_hpc.errors import ConfigError

if TYPE_CHECKING:
    from geomano_hpc.data_prep.conversion.convert import Converted
    from geomano_hpc.data_prep.problems import Problem


@dataclass(frozen=True)
class Words:
    problem: str
    name: str | None
    own_name: str  # where none is said
    inputs: list[str]
    targets: list[str]
    fields: list[str]
    constants: list[str]
    splits: dict[str, str | None]
    seed: int | None
    files: dict[str, list[Path]]  # of splits that have files of their own
    settings: dict[str, Any]
    by_name: dict[str, list[str]]  # axes, boundary, spacing, units: NAME=VALUE, or VALUE for all


def asked_for(words: Words, sources: list[Path]) -> tuple["Problem", list[Path], list[str]]:
    """The problem, its raw files, and the split of each file where files are split."""
    from geomano_hpc.data_prep.conversion.splits import SplitRule, parse_size
    from geomano_hpc.data_prep.problems import ALL_AXES, BENCHMARK, own_problem

    sizes = {name: parse_size(text, f"--{name}") for name, text in words.splits.items()}
    files, roles = list(sources), []
    if any(words.files.values()):
        roles = ["train"] * len(sources)
        for role, more in words.files.items():
            files, roles = files + more, roles + [role] * len(more)
        if "train" not in roles or "test" not in roles:
            raise ConfigError(
                "--validation-file, --test-file: the files to train on come first, and --test-file is needed"
            )
    by_name = {key: _by_name(key, texts) for key, texts in words.by_name.items()}
    by_name["field_axes"] = by_name.pop("axes")
    settings = {**words.settings, "axes": by_name["field_axes"].pop(ALL_AXES, None)}
    if words.problem in BENCHMARK:
        settings |= {"field_axes": by_name["field_axes"]} if by_name["field_axes"] else {}
        return _benchmark(words, settings, sizes, files), files, roles
    targets = words.fields if words.problem == "rollout" else words.targets
    wrong = words.targets if words.problem == "rollout" else words.fields
    if wrong:
        option, other = ("--target", "--field") if words.problem == "rollout" else ("--field", "--target")
        raise ConfigError(f"--problem {words.problem}: name the fields to predict with {other}, not {option}")
    rule = SplitRule(**sizes, seed=words.seed)
    settings |= {key: value for key, value in by_name.items() if value}
    return (
        own_problem(
            words.problem, words.name or words.own_name, words.inputs, targets, words.constants, rule, **settings
        ),
        files,
        roles,
    )


def _benchmark(words: Words, given: dict[str, Any], sizes: dict[str, Any], files: Sequence[Path]) -> "Problem":
    from geomano_hpc.data_prep.problems import BENCHMARK, problem

    steady = BENCHMARK[words.problem].kind == "steady"
    own = {
        "--name": words.name,
        "--frames-in": words.settings["frames_in"] if steady else None,
        "--frames-out": words.settings["frames_out"] if steady else None,
        "--input": None if steady or words.inputs == words.targets else words.inputs,
        "--field": words.fields,
        "--constant": words.constants,
        "--validation": sizes["validation"],
        "--validation-file": words.files["validation"],
        "--shuffle-seed": words.seed,
        **{f"--{key}": texts for key, texts in words.by_name.items() if key != "axes"},
        "--time-stride": words.settings["time_stride"],
        "--window-stride": words.settings["window_stride"],
        "--time-step": words.settings["time_step"],
        "--normalise": words.settings["normalise"],
    }
    refused = next((option for option, value in own.items() if value not in (None, [])), None)
    if refused is not None:
        raise ConfigError(
            f"{refused}: --problem {words.problem} is the benchmark's, with its own protocol; use --problem steady or "
            "rollout for your data"
        )
    if not 1 <= len(files) <= 2:
        raise typer.BadParameter("give one file, or two: training and test", param_hint="SOURCES")
    for option, texts in (("--input", words.inputs), ("--target", words.targets)):
        if len(texts) > 1:
            raise ConfigError(
                f"{option}: --problem {words.problem} has one field there; use --problem steady for several"
            )
    keys = {"input_key": next(iter(words.inputs), None), "target_key": next(iter(words.targets), None)}
    counts = {f"{name}_samples": size for name, size in sizes.items() if name != "validation"}
    settings = {key: value for key, value in given.items() if f"--{key.replace('_', '-')}" not in own}
    return problem(words.problem, **keys, **counts, **settings)


def _by_name(option: str, texts: list[str]) -> dict[str, Any]:
    """`x=wall` of one axis, `wall` of all."""
    from geomano_hpc.data_prep.problems import ALL_AXES

    found: dict[str, Any] = {}
    for text in texts:
        key, separator, value = text.rpartition("=")
        if option == "units" and not separator:
            raise ConfigError(f"--units {text}: write FIELD=UNITS, such as p=Pa")
        name = key if separator else ALL_AXES
        if name in found:
            raise ConfigError(f"--{option}: {key or 'that of all'} is given twice")
        found[name] = _number(text, value) if option == "spacing" else value
    return found


def _number(text: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise ConfigError(f"--spacing {text}: expected a number above 0, or AXIS=NUMBER")
    return number


def tell(done: "Converted", out: Path) -> None:
    """What was written, and in one line of numbers what is used of what is there."""
    from geomano_hpc.data_prep.store import open_store

    store = open_store(out)
    sizes = " + ".join(f"{size} {name}" for name, size in store.card.splits.items())
    what = "trajectories" if store.card.windows else "samples"
    points = " x ".join(map(str, store.grid))
    typer.echo(f"{'wrote' if done.made else 'already there, reused:'} {out} ({sizes} {what} on {points} points)")
    unused = f"; variables not used: {', '.join(done.unused[:8])}" if done.unused else ""
    more = f" and {len(done.unused) - 8} more" if len(done.unused) > 8 else ""
    typer.echo(f"used: {', '.join(done.used)}{unused}{more}")
