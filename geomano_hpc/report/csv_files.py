"""A report as CSV files for other programs: a row per run, a row per variant, and the printed tables cell by cell.

Numbers are written in full and without units, so that they read back as numbers; what is not known is empty.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from geomano_hpc.report.runs import Run, Spread, Variant

if TYPE_CHECKING:
    from geomano_hpc.report.study_report import Report

_OF_FIELD = "rel_l2:"


def runs_csv(variants: Sequence[Variant]) -> str:
    """One row per run, finished or not, also of runs that repeat another one."""
    varied = _varied(variants)
    runs = [(one, run) for one in variants for run in (*one.runs, *one.repeated)]
    errors = _further_errors([run for _, run in runs])
    return _csv(_row_of_run(run, one, varied, errors) for one, run in runs)


def variants_csv(variants: Sequence[Variant]) -> str:
    """One row per variant: means and sample standard deviations over its finished seeds."""
    varied = _varied(variants)
    return _csv(_row_of_variant(variant, varied) for variant in variants)


def _further_errors(runs: Sequence[Run]) -> list[str]:
    """Columns that only some runs have: the error of each target field, and that of the validation split."""
    results = [run.result for run in runs if run.result]
    found = [fields for result in results if len(fields := result.get("rel_l2_by_field") or {}) > 1]
    names = dict.fromkeys(f"{_OF_FIELD}{name}" for fields in found for name in fields)
    judged = any(result.get("validation_rel_l2") is not None for result in results)
    return [*names, *(["validation_rel_l2"] if judged else [])]


def _row_of_run(run: Run, variant: Variant, varied: Sequence[str], errors: Sequence[str]) -> dict[str, Any]:
    result = run.result or {}
    by_field = {f"{_OF_FIELD}{name}": error for name, error in (result.get("rel_l2_by_field") or {}).items()}
    epochs, seconds = result.get("epochs"), result.get("train_seconds")
    return {
        "study": run.study,
        "run": run.status.name,
        "state": run.status.state,
        "problem": variant.problem,
        "model": run.recipe.model.name,
        "seed": run.recipe.training.seed,
        **{key: variant.values.get(key) for key in varied},
        "epochs": epochs if run.result else run.status.epoch,
        "rel_l2": result.get("rel_l2"),
        **{name: by_field.get(name, result.get(name)) for name in errors},
        "parameters": result.get("parameters"),
        "train_seconds": seconds,
        "seconds_per_epoch": seconds / epochs if seconds is not None and epochs else None,
        "test_samples": result.get("test_samples"),
        "folder": run.folder.path,
    }


def _row_of_variant(variant: Variant, varied: Sequence[str]) -> dict[str, Any]:
    return {
        "study": variant.runs[0].study,
        "variant": variant.label,
        "problem": variant.problem,
        "model": variant.recipe.model.name,
        **{key: variant.values.get(key) for key in varied},
        "runs": len(variant.runs),
        "finished": variant.error.n,
        **_spread("rel_l2", variant.error),
        "rel_l2_min": min(variant.error.finite, default=None),
        "rel_l2_max": max(variant.error.finite, default=None),
        "parameters": variant.parameters,
        **_spread("seconds_per_epoch", variant.train_seconds),
        "not_as_in_the_paper": "; ".join(variant.differences),
    }


def _spread(name: str, spread: Spread) -> dict[str, Any]:
    return {f"{name}_mean": spread.mean, f"{name}_std": spread.deviation}


def _varied(variants: Sequence[Variant]) -> list[str]:
    return list(dict.fromkeys(key for variant in variants for key in variant.values))


def _csv(rows: Iterable[dict[str, Any]]) -> str:
    listed = list(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(listed[0]), lineterminator="\n")  # None is written as nothing, a float in full
    writer.writeheader()
    writer.writerows(listed)
    return text.getvalue()


def tables_csv(report: "Report") -> str:
    """The tables as they are printed, one line for each cell, so that one file holds them all."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["table", "row", "name", "column", "text", "value", "best"])
    for table in report.tables:
        columns = _distinct(table.columns)
        for number, row in enumerate(table.rows):
            for column, cell in zip(columns, row, strict=True):
                value = "" if cell.value is None else repr(cell.value)
                best = "yes" if cell.best else ""
                writer.writerow([table.name, number, row[0].text, column, cell.text, value, best])
    return text.getvalue()


def _distinct(columns: Sequence[str]) -> list[str]:
    """`measured` after `Darcy flow: published` is `Darcy flow: measured`."""
    named, group = [], ""
    for column in columns:
        before, separator, _ = column.partition(": ")
        group = f"{before}: " if separator else group
        named.append(column if separator or not group else f"{group}{column}")
    return named
