"""The tables of the paper with what was measured beside what was published."""

from collections.abc import Sequence
from dataclasses import replace

from geomano_hpc.report.measured_costs import Costs, costs_of
from geomano_hpc.report.published import (
    ABLATION,
    DEVIATION,
    EFFICIENCY,
    MAIN,
    PROTOCOL,
    TITLES,
    ablation_row,
    published,
    published_name,
)
from geomano_hpc.report.runs import Spread, Variant
from geomano_hpc.report.table import Cell, Table, number, words

NOT_RUN = "not run"
_MARK = " †"


def measured(variant: Variant | None) -> Cell:
    """Mean and deviation of the error; marked where it was not trained by the paper's protocol."""
    if variant is None:
        return Cell(NOT_RUN)
    return _measured(variant, variant.error, 5, variant.differences)


def _measured_cost(variant: Variant | None, spread: Spread | None, digits: int) -> Cell:
    if variant is None or spread is None:
        return Cell(NOT_RUN)
    return _measured(variant, spread, digits, variant.cost_differences)


def _measured(variant: Variant, spread: Spread, digits: int, differences: Sequence[str]) -> Cell:
    if spread.mean is None:
        return Cell("not recorded" if variant.error.n else f"0 of {len(variant.runs)} done")
    return Cell(spread.in_words(digits) + (_MARK if differences else ""), spread.mean)


def error_notes(variants: Sequence[Variant]) -> list[str]:
    """What the errors are of, and with which weights."""
    told = "Relative L2 error on the test split, mean ± standard deviation over n seeds; the smallest is bold."
    results = [result for variant in variants for result in variant.results]
    chosen = sum(result.get("weights") == "best" for result in results)
    weights = {"Weights chosen on the validation split, errors of the test split": chosen}
    weights["Weights of the last epoch"] = len(results) - chosen
    found = {words: count for words, count in weights.items() if count}
    if len(found) < 2:
        return [told, *(f"{words}." for words in found)]
    return [told, *(f"{words}: {count} of {len(results)} runs." for words, count in found.items())]


def protocol_notes(variants: Sequence[Variant], of_cost: bool = False) -> list[str]:
    """What the mark means, a line for each problem: how the variants differ from what the published numbers were made
    with; first what is so for all of them."""
    notes = []
    for problem in PROTOCOL:
        marked = [v for v in variants if v.error.n and v.benchmark == problem]
        found = [v.cost_differences if of_cost else v.differences for v in marked]
        found = [what for what in found if what]
        if not found:
            continue
        common = [word for word in found[0] if all(word in what for what in found)]
        others = list(dict.fromkeys(word for what in found for word in what if word not in common))
        in_part = "; ".join(others[:3]) + (f"; and {len(others) - 3} more" if len(others) > 3 else "")
        words = "; ".join([*common, *([f"in part: {in_part}"] if others else [])])
        protocol = f"{TITLES[problem]}: {PROTOCOL[problem]}"
        notes.append(f"† not, or not for certain, by the paper's protocol ({protocol}). Here: {words}.")
    return notes


def _count(variant: Variant | None) -> Cell:
    if variant is None:
        return Cell("-")
    return Cell(f"{variant.error.n} of {len(variant.runs)}", variant.error.n)


def _closest(variants: Sequence[Variant], problem: str, name: str) -> Variant | None:
    """The variant that is this row of the main table; of several the one that is closest to the paper's protocol."""
    found = [v for v in variants if v.benchmark == problem and published_name(problem, v.model) == name]
    return min(found, key=lambda v: (not v.error.n, len(v.differences)), default=None)


def _problems(variants: Sequence[Variant]) -> list[str]:
    return [problem for problem in PROTOCOL if any(v.benchmark == problem for v in variants)] or list(PROTOCOL)


def main_table(variants: Sequence[Variant]) -> Table:
    """Table "Performance comparison on standard benchmarks"."""
    problems = _problems(variants)
    columns, rows, used = ["model"], [], []
    for problem in problems:
        columns += [f"{TITLES[problem]}: published", "measured", "n"]
    for model in MAIN:
        cells = words(model)
        for problem in problems:
            variant = _closest(variants, problem, model)
            used += [variant] if variant is not None else []
            cells += [number(published(problem)[model], 4), measured(variant), _count(variant)]
        rows.append(cells)
    notes = error_notes(used)
    columns_of_errors = [index for group in range(len(problems)) for index in (1 + 3 * group, 2 + 3 * group)]
    table = Table("main", "Performance comparison on standard benchmarks", columns, rows, notes + protocol_notes(used))
    return table.with_best(columns_of_errors)


def ablation_tables(variants: Sequence[Variant]) -> list[Table]:
    """Table "Ablation studies", one for each problem."""
    tables = []
    for problem in _problems(variants):
        rows, used = [], []
        for row, error in ABLATION[problem].items():
            found = [v for v in variants if v.benchmark == problem and ablation_row(problem, v.model) == row]
            variant = min(found, key=lambda v: (not v.error.n, len(v.differences)), default=None)
            used += [variant] if variant is not None else []
            kind, position, correction = row
            names = words("2D" if kind == "2d" else "vanilla", "yes" if position else "none", correction)
            rows.append([*names, number(error, 5), measured(variant), _count(variant)])
        columns = ["scan", "positional encoding", "correction", "published", "measured", "n"]
        notes = error_notes(used) + protocol_notes(used)
        tables.append(
            Table(f"ablation_{problem}", f"Ablation on {TITLES[problem]}", columns, rows, notes).with_best([3, 4])
        )
    return tables


def efficiency_tables(variants: Sequence[Variant]) -> list[Table]:
    """Table "Efficiency comparison", one for each problem, with the ratio of the two models below."""
    columns = ["model"]
    for what in ("train s", "infer s", "MB"):
        columns += [f"{what}: published", "measured"]
    tables = []
    for problem in _problems(variants):
        found: dict[str, Costs | None] = {}
        rows: list[list[Cell]] = []
        for model, costs in EFFICIENCY[problem].items():
            variant = _closest(variants, problem, model)
            mine = found[model] = None if variant is None else costs_of(variant)
            cells = words(model)
            for kind in ("train", "infer", "memory"):
                cells.append(number(costs[kind][0], 2))
                cells.append(_measured_cost(variant, None if mine is None else mine.of(kind), 2))
            rows.append([*cells, _count(variant)])
        places = dict.fromkeys(place for costs in found.values() if costs is not None for place in costs.places)
        notes = [
            "Seconds of one pass over the training and the test split, without the first epoch; the peak memory of "
            "the training process, on the GPU where there is one. The paper does not say what its memory counts.",
            f"Published on one Quadro RTX 8000; measured on: {', '.join(places) or 'nothing yet'}.",
            *protocol_notes([v for v in variants if v.benchmark == problem], of_cost=True),
        ]
        title = f"Efficiency on {TITLES[problem]}"
        made = Table(f"efficiency_{problem}", title, [*columns, "n"], rows, notes).with_best(range(1, 7))
        tables.append(replace(made, rows=[*made.rows, _ratios(problem, found)]))
    return tables


def _ratios(problem: str, found: dict[str, Costs | None]) -> list[Cell]:
    cells = words("GeoMaNO / Transolver")
    ours, theirs = found["GeoMaNO"], found["Transolver"]
    for kind in ("train", "infer", "memory"):
        published_pair = [EFFICIENCY[problem][model][kind][0] for model in ("GeoMaNO", "Transolver")]
        cells.append(Cell(f"{published_pair[0] / published_pair[1]:.2f}"))
        one, other = (None if costs is None else costs.of(kind).mean for costs in (ours, theirs))
        cells.append(Cell(f"{one / other:.2f}" if one and other else "-"))
    return [*cells, Cell("")]


def error_bounds_table(variants: Sequence[Variant]) -> Table:
    """Tables "Error bounds (standard deviations)" of the main results and of the efficiency."""
    rows = []
    units = {"train": "training s/epoch", "infer": "inference s/epoch", "memory": "memory MB"}
    for problem in _problems(variants):
        variant = _closest(variants, problem, "GeoMaNO")
        bound = f"{MAIN['GeoMaNO'][list(reversed(PROTOCOL)).index(problem)]:.4f} ± {DEVIATION[problem]:.2e}"
        rows.append([*words(TITLES[problem], "GeoMaNO", "relative L2", bound), measured(variant), _count(variant)])
        for model, costs in EFFICIENCY[problem].items():
            variant = _closest(variants, problem, model)
            mine = None if variant is None else costs_of(variant)
            for kind, unit in units.items():
                mean, deviation = costs[kind]
                cell = _measured_cost(variant, None if mine is None else mine.of(kind), 3)
                rows.append([*words(TITLES[problem], model, unit, f"{mean} ± {deviation:.2e}"), cell, _count(variant)])
    columns = ["problem", "model", "quantity", "published", "measured", "n"]
    notes = ["Mean ± standard deviation over n seeds.", *protocol_notes(variants)]
    return Table("error_bounds", "Error bounds", columns, rows, notes)
