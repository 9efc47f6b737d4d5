"""Mean and standard deviation over seeds, one row for each variant of a study."""

import statistics
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geomano_hpc.errors import GeomanoError
from geomano_hpc.report.published import DEVIATION, PROTOCOL, published
from geomano_hpc.training.run_folder import RunFolder, run_folders


@dataclass(frozen=True)
class Row:
    variant: str
    errors: list[float]
    unfinished: list[str]
    parameters: int | None

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
        return [self.variant, self.in_words(), str(len(self.errors)), unfinished, str(self.parameters or "-")]


COLUMNS = ("variant", "test rel-L2 (mean ± std over seeds)", "seeds", "not finished", "parameters")


@dataclass(frozen=True)
class Table:
    study: str
    problem: str
    rows: list[Row]

    def published_lines(self) -> list[str]:
        numbers = published(self.problem)
        if not numbers:
            return []
        others = sorted((error, model) for model, error in numbers.items() if model != "GeoMaNO")[:3]
        ours = f"GeoMaNO {numbers['GeoMaNO']:.4f} ± {DEVIATION[self.problem]:.1e}"
        best = ", ".join(f"{model} {error:.4f}" for error, model in others)
        return [f"published for {PROTOCOL[self.problem]}: {ours}, {best}"]

    def to_markdown(self) -> str:
        lines = [f"# {self.study}", "", f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
        lines += [f"| {' | '.join(row.cells())} |" for row in self.rows]
        return "\n".join([*lines, "", *self.published_lines()]) + "\n"


def make_table(study: Path) -> Table:
    folders = run_folders(study)
    if not folders:
        raise GeomanoError(f"{study}: no runs in this folder; start some with `geomano launch`")
    groups: dict[str, list[RunFolder]] = defaultdict(list)
    contents = [_flat(folder.recipe().model_dump(mode="json")) for folder in folders]
    varied = [
        key
        for key in contents[0]
        if key != "training.seed" and len({str(content.get(key)) for content in contents}) > 1
    ]
    for folder, content in zip(folders, contents, strict=True):
        label = ", ".join(f"{key} {content.get(key)}" for key in varied) or str(content["name"])
        groups[label].append(folder)
    results = [folder.result() for folder in folders]
    problem = next((str(result["problem"]) for result in results if result), "")
    return Table(study.name, problem, [_row(label, members) for label, members in groups.items()])


def _row(variant: str, folders: list[RunFolder]) -> Row:
    results = [result for result in (folder.result() for folder in folders) if result]
    unfinished = [folder.path.name for folder in folders if not folder.is_finished]
    parameters = int(results[0]["parameters"]) if results else None
    return Row(variant, [float(result["rel_l2"]) for result in results], unfinished, parameters)


def _flat(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
