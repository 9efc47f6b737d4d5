"""The report of one or more studies: which tables and pictures it has, and its files."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import geomano_hpc
from geomano_hpc.atomic import write_text
from geomano_hpc.errors import ConfigError, GeomanoError
from geomano_hpc.launch.manifest import kept_study, report_folder, study_file
from geomano_hpc.launch.study import TableName
from geomano_hpc.report.csv_files import runs_csv, tables_csv, variants_csv
from geomano_hpc.report.figures import MOST_CURVES, Picture, loss_curves, predictions, scalability_curves
from geomano_hpc.report.html import to_html
from geomano_hpc.report.measured_costs import last_start, place_of
from geomano_hpc.report.paper_tables import ablation_tables, efficiency_tables, error_bounds_table, main_table
from geomano_hpc.report.published import TITLES
from geomano_hpc.report.runs import Run, Variant, names_of, read_runs, variants_of
from geomano_hpc.report.study_tables import scalability_table, unfinished_table, variants_table
from geomano_hpc.report.table import Table
from geomano_hpc.report.text import to_latex, to_markdown

_NO_CURVE = "a scalability curve needs a study in which one number varies, and nothing else"
FORMATS = ("terminal", "markdown", "latex", "csv", "html")


@dataclass
class Report:
    title: str
    about: str
    facts: list[str]
    tables: list[Table]
    variants: list[Variant]
    pictures: list[Picture] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)


def make_report(studies: Sequence[Path], tables: Sequence[TableName] = (), with_figures: bool = True) -> Report:
    """Read the runs and make the tables: those that are asked for, or those that the studies name, and their own."""
    runs = read_runs(studies)
    variants = variants_of(runs)
    about, named = _said_by_studies(studies)
    wanted = tables or named
    title = ", ".join(names_of(studies))
    curves = _curves(variants)
    made: list[Table] = []
    if "main" in wanted:
        made.append(main_table(variants))
    if "ablation" in wanted:
        made += ablation_tables(variants)
    if "efficiency" in wanted:
        made += efficiency_tables(variants)
    if "error_bounds" in wanted:
        made.append(error_bounds_table(variants))
    if "scalability" in wanted:
        if not curves and tables:
            raise ConfigError(f"{title}: {_NO_CURVE}; leave it out of --table")
        made += [scalability_table(name, members) for name, members in curves.items()]
    made.append(variants_table(title, variants))
    without = unfinished_table(runs)
    report = Report(title, about, _facts(runs, variants), [*made, without] if without else made, variants)
    if "scalability" in wanted and not curves:
        report.facts.append(f"there is no scalability table: {_NO_CURVE}")
    if with_figures:
        report.pictures = _pictures(variants, curves if "scalability" in wanted else {}, report.facts)
    return report


def write_report(
    studies: Sequence[Path], out: Path | None = None, tables: Sequence[TableName] = (), with_figures: bool = True
) -> Report:
    """The report with its files: report.md, .tex, .html, which holds the pictures, .csv, and each picture twice."""
    if out is None and len(studies) > 1:
        raise ConfigError("a report of several studies belongs to none of their folders: say where with --out FOLDER")
    report = make_report(studies, tables, with_figures)
    out = out or report_folder(studies[0])
    drawn = [picture.write(out) for picture in report.pictures]
    texts = {
        "report.md": to_markdown(report, [files[0].name for files in drawn]),
        "report.tex": to_latex(report, [files[1].name for files in drawn]),
        "report.csv": runs_csv(report.variants),
        "report_variants.csv": variants_csv(report.variants),
        "report_tables.csv": tables_csv(report),
        "report.html": to_html(report, [files[0].read_bytes() for files in drawn]),
    }
    for name, text in texts.items():
        write_text(out / name, text)
    report.files = [*(out / name for name in texts), *(file for files in drawn for file in files)]
    return report


def _said_by_studies(studies: Sequence[Path]) -> tuple[str, list[TableName]]:
    found = [kept_study(study) for study in studies if study_file(study).is_file()]
    tables = dict.fromkeys(table for study in found for table in study.tables)
    return "; ".join(study.about for study in found if study.about), list(tables)


def _data_in_words(variants: Sequence[Variant]) -> list[str]:
    """Each problem with its store, and how large it is."""
    found: dict[str, None] = {}
    for variant in variants:
        data, title = variant.data, TITLES.get(variant.benchmark or "", variant.problem)
        named = (("train", data.train_samples), ("validation", data.validation_samples), ("test", data.test_samples))
        sizes = " + ".join(f"{size} {name}" for name, size in named if size)
        points = "" if data.grid is None else f", {' x '.join(map(str, data.grid))} points"
        where = f"data: {title or 'unknown'}, {variant.recipe.data.store}{points}"
        found[where + (f", {sizes}" if sizes else "")] = None
    return list(found)


def _facts(runs: Sequence[Run], variants: Sequence[Variant]) -> list[str]:
    """What a reader must know before the numbers."""
    counts = Counter(run.status.state for run in runs)
    done = counts.pop("done", 0)
    rest = ", ".join(f"{count} {state}" for state, count in counts.items())
    facts = [f"{done} of {len(runs)} runs are done" + (f"; {rest}: listed at the end" if rest else "")]
    facts += _data_in_words(variants)
    finished = [run for run in runs if run.result]
    diverged = [f"{run.study}/{run.status.name}" for run in finished if not math.isfinite(run.error)]
    if diverged:
        shown = ", ".join(diverged[:5]) + (f" and {len(diverged) - 5} more" if len(diverged) > 5 else "")
        facts.append(f"runs with an error that is not finite, so that no mean with it is: {shown}")
    places = Counter(place_of(run) for run in finished)
    if places:
        facts.append("trained on " + ", ".join(f"{place} ({count} runs)" for place, count in places.most_common(5)))
    starts = [last_start(run) for run in finished]
    codes = Counter(start.get("git_revision") or "a release without a revision" for start in starts if start)
    if len(codes) > 1:
        facts.append("the runs were trained with different code: " + ", ".join(f"{code[:12]}" for code in codes))
    if any(code.endswith("-dirty") for code in codes):
        facts.append("some runs were trained with code that was edited and not committed")
    backends = Counter(str(start["scan_backend"]) for start in starts if start.get("scan_backend"))
    if backends:
        facts.append("scan backend " + ", ".join(f"{name} ({count} runs)" for name, count in backends.items()))
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return [*facts, f"report made {made} with geomano_hpc {geomano_hpc.__version__}"]


def _curves(variants: Sequence[Variant]) -> dict[str, list[Variant]]:
    """Name of a curve -> its variants: the key that varies in a study, and the study where several vary the same."""
    curves: dict[tuple[str, str], list[Variant]] = {}
    for variant in variants:
        point = variant.runs[0].point
        if len(point) == 1:
            ((key, value),) = point.items()
            if _is_number(value):
                curves.setdefault((variant.runs[0].study, key), []).append(variant)
    found = {where: members for where, members in curves.items() if len(members) > 1}
    words = {where: where[1].rpartition(".")[2] for where in found}
    several = Counter(words.values())
    return {
        words[study, key] if several[words[study, key]] == 1 else f"{words[study, key]} ({study})": members
        for (study, key), members in found.items()
    }


def _is_number(value: object) -> bool:
    try:
        return not isinstance(value, bool) and float(str(value)) > 0
    except ValueError:
        return False


def _finite_or_last(error: float | None) -> float:
    return error if error is not None and math.isfinite(error) else math.inf


def _pictures(variants: Sequence[Variant], curves: dict[str, list[Variant]], facts: list[str]) -> list[Picture]:
    """Where a picture cannot be drawn, the facts say so."""
    pictures = []
    curves = {name: members for name, members in curves.items() if any(v.error.finite for v in members)}
    if curves:
        note = "Mean and standard deviation over seeds; dots are seeds."
        pictures.append(Picture("scalability", "Scalability", note, lambda: scalability_curves(dict(curves))))
    trained = [v for v in variants if any(run.folder.metrics_file.is_file() for run in v.runs)]
    best = sorted(trained, key=lambda v: _finite_or_last(v.error.mean))[:MOST_CURVES]
    if best:
        note = f"The best {len(best)} of {len(trained)} variants." if len(trained) > len(best) else ""
        pictures.append(Picture("loss_curves", "Training", note, lambda: loss_curves(best)))
    for problem in dict.fromkeys(v.problem for v in variants if v.error.n):
        finished = [run for v in variants if v.problem == problem for run in v.runs if run.result]
        run = min(finished, key=lambda run: _finite_or_last(run.error))
        if not math.isfinite(run.error):
            facts.append(f"no picture of predictions: no run of {TITLES.get(problem, problem)} has a finite error")
            continue
        try:
            draw = predictions(run.folder)
        except (GeomanoError, OSError) as reason:
            facts.append(f"no picture of predictions: {reason}")
            continue
        note = f"{run.study}/{run.status.name}, the best run: test rel-L2 {run.error:.5f}"
        name = f"prediction_{problem}" if len({v.problem for v in variants if v.error.n}) > 1 else "prediction"
        pictures.append(
            Picture(name, f"Predictions and errors: {TITLES.get(problem, problem or 'test samples')}", note, draw)
        )
    return pictures
