"""Mean and standard deviation over seeds, one row for each variant of a study."""

import statistics
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geomano_hpc.errors import GeomanoError
from geomano_hpc.report.published import DEVIATION, EFFICIENCY, PROTOCOL, published, published_for
from geomano_hpc.training.run_folder import RunFolder, run_folders


@dataclass(frozen=True)
class Row:
    variant: str
    errors: list[float]
    unfinished: list[str]
    parameters: int | None
    published: float | None = None  # of the same configuration, by the paper's protocol
    seconds_per_epoch: float | None = None

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.errors) if self.errors else None

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation over seeds; none for a single seed."""
        return statistics.stdev(self.errors) if len(self.errors) > 1 else None

    def in_words(self) -> str:
        if self.mean is None:
            return "-"
        return f"{self.mean:.5f}" + ("" if self.deviation is None else f" ± {self.deviation:.5f}")

    def cells(self) -> list[str]:
        unfinished = ", ".join(self.unfinished) or "-"
        paper = "-" if self.published is None else f"{self.published:.5f}"
        seconds = "-" if self.seconds_per_epoch is None else f"{self.seconds_per_epoch:.1f}"
        counts = [str(len(self.errors)), unfinished, str(self.parameters or "-")]
        return [self.variant, self.in_words(), paper, *counts, seconds]


COLUMNS = ("variant", "rel-L2 ± std", "paper", "seeds", "missing", "parameters", "s/epoch")


@dataclass(frozen=True)
class Table:
    study: str
    problem: str
    rows: list[Row]

    def published_lines(self) -> list[str]:
        numbers = published(self.problem)
        if not numbers:
            return []
        others = sorted((error, model) for model, error in numbers.items() if model != "GeoMaNO")
        ours = f"GeoMaNO {numbers['GeoMaNO']:.4f} ± {DEVIATION[self.problem]:.1e}"
        models = ", ".join(f"{model} {error:.4f}" for error, model in others)
        epochs = ", ".join(
            f"{model} {cost['train'][0]} s to train, {cost['infer'][0]} s to infer, {cost['memory'][0]} MB"
            for model, cost in EFFICIENCY[self.problem].items()
        )
        return [
            f"published for {PROTOCOL[self.problem]}: {ours}, {models}",
            f"published cost of an epoch on one Quadro RTX 8000: {epochs}",
        ]

    def to_markdown(self) -> str:
        lines = [f"# {self.study}", "", f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
        lines += [f"| {' | '.join(row.cells())} |" for row in self.rows]
        lines += ["", "Relative L2 error on the test split: mean and standard deviation over the seeds.", ""]
        return "\n".join([*lines, *(f"{line}\n" for line in self.published_lines())]) + "\n"


def make_table(study: Path) -> Table:
    folders = run_folders(study)
    if not folders:
        raise GeomanoError(f"{study}: no runs in this folder; start some with `geomano launch`")
    groups: dict[str, list[RunFolder]] = defaultdict(list)
    contents = [_flat(folder.recipe().model_dump(mode="json")) for folder in folders]
    varied = [
        key
        for key in dict.fromkeys(key for content in contents for key in content)
        if key != "training.seed" and len({str(content.get(key)) for content in contents}) > 1
    ]
    for folder, content in zip(folders, contents, strict=True):
        # A key that another model has and this one has not is no part of its label.
        label = ", ".join(f"{key} {content[key]}" for key in varied if key in content) or str(content["name"])
        groups[label].append(folder)
    results = [folder.result() for folder in folders]
    problem = next((str(result["problem"]) for result in results if result), "")
    return Table(study.name, problem, [_row(label, members) for label, members in groups.items()])


def _row(variant: str, folders: list[RunFolder]) -> Row:
    results = [result for result in (folder.result() for folder in folders) if result]
    unfinished = [folder.path.name for folder in folders if not folder.is_finished]
    errors = [float(result["rel_l2"]) for result in results]
    if not results:
        return Row(variant, errors, unfinished, None)
    model = folders[0].recipe().model.model_dump(mode="json")
    seconds = [result["train_seconds"] / result["epochs"] for result in results if "train_seconds" in result]
    return Row(
        variant,
        errors,
        unfinished,
        int(results[0]["parameters"]),
        published_for(str(results[0]["problem"]), model),
        statistics.fmean(seconds) if seconds else None,
    )


def _flat(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
