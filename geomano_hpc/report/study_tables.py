"""Tables of the study itself: its variants, and the runs that have no result."""

import re
from collections import Counter
from collections.abc import Sequence

from geomano_hpc.report.paper_tables import error_notes, measured, protocol_notes
from geomano_hpc.report.published import published_for
from geomano_hpc.report.runs import Run, Spread, Variant
from geomano_hpc.report.table import Cell, Table, number
from geomano_hpc.training.records.run_state import ACTIVE, TO_RETRY, State


def variants_table(study: str, variants: Sequence[Variant]) -> Table:
    fields = list(dict.fromkeys(name for variant in variants for name in variant.errors_by_field))
    rows = []
    for variant in variants:
        counts = Counter(run.status.state for run in variant.unfinished)
        missing = ", ".join(f"{count} {state}" for state, count in counts.items())
        paper = published_for(variant.benchmark, variant.model) if variant.benchmark else None
        parameters = variant.parameters
        rows.append(
            [
                Cell(variant.label),
                measured(variant),
                *(_error_of_field(variant, name) for name in fields),
                number(paper, 5),
                Cell(str(variant.error.n), variant.error.n),
                Cell(missing or "-", sum(counts.values())),
                Cell("-" if parameters is None else f"{parameters:,}", parameters),
                number(variant.train_seconds.mean, 2),
            ]
        )
    columns = ["variant", "rel-L2", *fields, "paper", "n", "without result", "parameters", "s/epoch"]
    notes = error_notes(variants) + protocol_notes(variants)
    table = Table("variants", f"{study}: all variants", columns, rows, notes)
    data = {variant.recipe.data.store for variant in variants}  # errors on other data are no better and no worse
    return table.with_best(range(1, 2 + len(fields))) if len(data) == 1 else table


def _error_of_field(variant: Variant, name: str) -> Cell:
    spread = variant.errors_by_field.get(name, Spread([]))
    return Cell(spread.in_words(), spread.mean)


def scalability_table(name: str, variants: Sequence[Variant]) -> Table:
    """The numbers of the scalability curve over the one key that varies."""
    rows = []
    for variant in variants:
        (value,) = variant.runs[0].point.values()
        parameters = variant.parameters
        size = Cell("-" if parameters is None else f"{parameters:,}", parameters)
        rows.append(
            [Cell(str(value), float(value)), measured(variant), Cell(str(variant.error.n), variant.error.n), size]
        )
    notes = ["The paper shows this curve as a picture without numbers: there is nothing published to put beside it."]
    notes += protocol_notes(variants)
    label = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_")
    columns = [name.partition(" ")[0], "rel-L2", "n", "parameters"]
    table = Table(f"scalability_{label}", f"Scalability: {name}", columns, rows, notes)
    return table.with_best([1])


def unfinished_table(runs: Sequence[Run]) -> Table | None:
    """Every run without a result. Those that failed come first, with their error and where to look."""
    order: tuple[State, ...] = (*TO_RETRY, *ACTIVE, "pending")
    found = sorted((run for run in runs if run.result is None), key=lambda run: order.index(run.status.state))
    if not found:
        return None
    rows = []
    for run in found:
        status = run.status
        log = str(status.log) if status.state == "failed" else ""
        epoch = Cell(f"{status.epoch}/{status.epochs}", status.epoch)
        rows.append([Cell(status.name), Cell(status.state), epoch, Cell(status.note), Cell(log)])
    counts = Counter(run.status.state for run in found)
    summary = ", ".join(f"{counts[state]} {state}" for state in order if counts[state])
    return Table("without_result", f"Runs without a result: {summary}", ["run", "state", "epoch", "why", "log"], rows)
