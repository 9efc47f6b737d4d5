"""The runs of one or more studies as the report reads them: what was asked, what came out, what went wrong.

Runs that differ in their seed only are one variant.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from geomano_hpc.config import DataConfig, Recipe
from geomano_hpc.errors import GeomanoError
from geomano_hpc.launch.manifest import read_manifest
from geomano_hpc.launch.status import RunStatus, study_status
from geomano_hpc.launch.study import word_of
from geomano_hpc.report.data_facts import DataFacts, data_facts
from geomano_hpc.report.protocol import differences
from geomano_hpc.report.published import PROTOCOL, problem_of_recipe
from geomano_hpc.training.records.run_folder import RunFolder


@dataclass(frozen=True)
class Run:
    study: str
    folder: RunFolder
    recipe: Recipe
    point: dict[str, Any]  # what varies in the study, and its value here; empty where no manifest tells
    status: RunStatus
    result: dict[str, Any] | None

    @property
    def error(self) -> float:
        """Of a finished run; not a number where the training diverged."""
        assert self.result is not None
        return float(self.result["rel_l2"])


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation of one number over seeds."""

    values: list[float]

    @property
    def n(self) -> int:
        return len(self.values)

    @property
    def finite(self) -> list[float]:
        return [value for value in self.values if math.isfinite(value)]

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """None for a single seed, not a number where a value is none."""
        if len(self.values) < 2:
            return None
        return statistics.stdev(self.values) if len(self.finite) == self.n else math.nan

    def in_words(self, digits: int = 5) -> str:
        if self.mean is None:
            return "-"
        return f"{self.mean:.{digits}f}" + ("" if self.deviation is None else f" ± {self.deviation:.{digits}f}")


@dataclass(frozen=True)
class Variant:
    """Runs that differ in their seed only."""

    label: str
    runs: list[Run]
    values: dict[str, Any]  # of the keys that vary between variants
    stored: DataFacts = field(compare=False)  # as the recipe's data is found now
    repeated: list[Run] = field(default_factory=list)  # with recipe and seed of one of `runs`: they do not count

    @property
    def recipe(self) -> Recipe:
        return self.runs[0].recipe

    @property
    def model(self) -> dict[str, Any]:
        return self.recipe.model.model_dump(mode="json")

    @property
    def problem(self) -> str:
        return self.data.problem or problem_of_recipe(self.recipe)

    @property
    def benchmark(self) -> str | None:
        """The problem of the paper that it was trained on; None for any other one, which is not compared with it."""
        protocol = self.data.protocol if self.data.problem else problem_of_recipe(self.recipe)
        return protocol if protocol in PROTOCOL else None

    @cached_property
    def data(self) -> DataFacts:
        return self.stored.with_results(self.results)

    @property
    def results(self) -> list[dict[str, Any]]:
        return [run.result for run in self.runs if run.result]

    @cached_property
    def error(self) -> Spread:
        return Spread([run.error for run in self.runs if run.result])

    @cached_property
    def errors_by_field(self) -> dict[str, Spread]:
        """Of each target field, where there are several."""
        found = [fields for result in self.results if len(fields := result.get("rel_l2_by_field") or {}) > 1]
        names = dict.fromkeys(name for fields in found for name in fields)
        return {name: Spread([float(fields[name]) for fields in found if name in fields]) for name in names}

    @cached_property
    def train_seconds(self) -> Spread:
        """Of an epoch."""
        found = [result for result in self.results if "train_seconds" in result]
        return Spread([result["train_seconds"] / result["epochs"] for result in found])

    @property
    def parameters(self) -> int | None:
        return next((int(result["parameters"]) for result in self.results if "parameters" in result), None)

    @property
    def unfinished(self) -> list[Run]:
        return [run for run in self.runs if not run.result]

    @cached_property
    def differences(self) -> list[str]:
        """How it was trained otherwise than its row of the paper, if it is of one of the paper's problems."""
        return [] if self.benchmark is None else differences(self.benchmark, self.recipe, self.data)

    @cached_property
    def cost_differences(self) -> list[str]:
        """The same for its seconds and its memory, which epochs and learning rate do not change."""
        return [] if self.benchmark is None else differences(self.benchmark, self.recipe, self.data, of_cost=True)


def names_of(studies: Sequence[Path]) -> list[str]:
    """The names of their folders; of those with the same name, the paths as they were given."""
    names = [study.resolve().name for study in studies]
    return [str(study) if names.count(name) > 1 else name for study, name in zip(studies, names, strict=True)]


def read_runs(studies: Sequence[Path]) -> list[Run]:
    runs = []
    for study, name in zip(studies, names_of(studies), strict=True):
        points = read_manifest(study).runs
        for status in study_status(study):
            folder = RunFolder(study / status.name) if (study / status.name).is_dir() else RunFolder(study)
            point = points.get(status.name, {})
            runs.append(Run(name, folder, status.recipe, point, status, folder.result()))
    if not runs:
        names = ", ".join(str(study) for study in studies)
        raise GeomanoError(f"{names}: no runs in this folder; start some with `geomano launch`")
    return runs


def variants_of(runs: Sequence[Run]) -> list[Variant]:
    """In the order of the study. Two variants never share a label: what else differs is added to it."""
    contents = [_flat(run.recipe.model_dump(mode="json")) for run in runs]
    for content in contents:
        content.pop("training.seed", None)
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, (run, content) in enumerate(zip(runs, contents, strict=True)):
        groups[run.study, str(sorted(content.items(), key=lambda item: item[0]))].append(index)
    all_members = list(groups.values())
    for key, members in groups.items():
        groups[key] = _one_for_each_seed(members, runs)
    studies = {run.study for run in runs}
    chosen = [members[0] for members in groups.values()]
    varied = _varied([contents[index] for index in chosen])
    facts: dict[DataConfig, DataFacts] = {}
    labels: dict[str, int] = {}
    variants = []
    for first, members, found in zip(chosen, groups.values(), all_members, strict=True):
        run = runs[first]
        if run.recipe.data not in facts:
            facts[run.recipe.data] = data_facts(run.recipe.data)
        values = run.point or {key: contents[first][key] for key in varied if key in contents[first]}
        label = ", ".join(f"{key.rpartition('.')[2]} {word_of(value)}" for key, value in values.items())
        label = label or run.recipe.name
        if "data.store" in varied and "data.store" not in values:
            label = f"{label}, {run.recipe.data.store.stem}"
        label = f"{run.study}: {label}" if len(studies) > 1 else label
        labels[label] = labels.get(label, 0) + 1
        if labels[label] > 1:
            label = f"{label} ({labels[label]})"
        words = {key: word_of(value) if isinstance(value, dict) else value for key, value in values.items()}
        repeated = [runs[index] for index in found if index not in members]
        variants.append(Variant(label, [runs[index] for index in members], words, facts[run.recipe.data], repeated))
    return variants


def _one_for_each_seed(members: Sequence[int], runs: Sequence[Run]) -> list[int]:
    """Of runs with the same recipe, which launches with other keys may have named otherwise, a finished one."""
    by_seed: dict[int, int] = {}
    for index in members:
        seed = runs[index].recipe.training.seed
        if seed not in by_seed or (runs[index].result and not runs[by_seed[seed]].result):
            by_seed[seed] = index
    return list(by_seed.values())


def _varied(contents: Sequence[Mapping[str, Any]]) -> list[str]:
    keys = dict.fromkeys(key for content in contents for key in content)
    return [key for key in keys if len({str(content.get(key)) for content in contents}) > 1]


def _flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
