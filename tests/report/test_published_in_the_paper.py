"""Every published number against the LaTeX of the paper's tables, which is kept beside the checkout."""

import re

import pytest

from geomano_hpc.config import load_recipe
from geomano_hpc.models.geomano import GeomanoConfig
from geomano_hpc.report.published import ABLATION, DEVIATION, EFFICIENCY, IMAGENET_100, MAIN, PUBLISHED_SIZE
from tests.support.real_data import FOLDER

PAPER = FOLDER.parent / "paper" / "000_463067762e777409.txt"
pytestmark = pytest.mark.skipif(not PAPER.is_file(), reason=f"no file {PAPER.name} with the paper")

TITLES = {"Navier-Stokes": "navier_stokes", "Darcy Flow": "darcy"}
Row = list[str]


def tables(label: str) -> list[tuple[str, list[Row]]]:
    """Caption and rows of every tabular of a table; the cells without the marks of fonts and citations."""
    (text,) = (
        block for block in re.findall(r"\\begin{table\*}.*?\\end{table\*}", PAPER.read_text(), re.DOTALL)
        if f"\\label{{{label}}}" in block
    )  # fmt: skip
    captions = re.findall(r"\\subcaption{(.*?)}", text)
    bodies = re.findall(r"\\begin{tabular}{.*?}\n(.*?)\\end{tabular}", text, re.DOTALL)
    return list(zip(captions or [""] * len(bodies), [rows(body) for body in bodies], strict=True))


def rows(body: str) -> list[Row]:
    body = re.sub(r"\\(toprule|midrule|bottomrule|cmidrule\(lr\){2-3})", "", body)
    found = [[plain(cell) for cell in line.split("&")] for line in body.split(r"\\")]
    return [row for row in found if any(row)]


def plain(cell: str) -> str:
    cell = re.sub(r"~?\\citep?{.*?}|\\phantom{.*}", "", cell)
    cell = re.sub(r"\\multirow{\d}{\*}", "", cell)
    for _ in range(2):  # \underline{\textit{0.0900}}
        cell = re.sub(r"\\(?:textbf|textit|underline){(.*?)}(?!})", r"\1", cell)
    return re.sub(r"^{(.*)}$", r"\1", cell.strip())


def with_deviation(cell: str) -> tuple[float, float]:
    r"""30.99 $\pm (4.71 \times 10^{-3})$, or 42.55 $\pm 0.00$"""
    found = re.fullmatch(r"([\d.]+) \$\\pm \(?([\d.]+)(?: \\times 10\^{(-\d+)}\))?\$", cell)
    assert found is not None, cell
    return float(found[1]), float(f"{found[2]}e{found[3] or 0}")


def test_main_results() -> None:
    printed = {}
    for _, found in tables("tab:mainres_standard"):
        assert found[1][1:] == [r"\ N.-S.\quad", "Darcy Flow"] or found[1][1:] == [r"\ N.-S. \quad", "Darcy Flow"]
        for name, *values in found[2:]:
            if name not in ("-", "Performance Gain"):
                printed[name.removesuffix(" (Ours)")] = tuple(float(value) for value in values)
    assert printed == MAIN


def test_efficiency() -> None:
    printed = {}
    for caption, found in tables("tab:efficiency"):
        assert ["train" in found[0][1], "infer" in found[0][2], "Mem." in found[0][3]] == [True] * 3
        printed[TITLES[caption]] = {
            name: [float(v) for v in values] for name, *values in found[1:] if "Perf" not in name
        }
    assert printed == {
        problem: {model: [costs[kind][0] for kind in ("train", "infer", "memory")] for model, costs in models.items()}
        for problem, models in EFFICIENCY.items()
    }


def test_error_bounds_of_the_efficiency() -> None:
    slips = []
    for caption, found in tables("tab:efficiency-stddev"):
        for name, *values in found[1:]:
            for kind, value in zip(("train", "infer", "memory"), values, strict=True):
                ours, printed = EFFICIENCY[TITLES[caption]][name][kind], with_deviation(value)
                assert ours[1] == printed[1]
                if ours != printed:
                    slips.append((caption, name, kind, printed[0]))
    # The paper contradicts itself here; its other table has 91.85, which goes with the gain of 23.3 % that it names.
    assert slips == [("Navier-Stokes", "Transolver", "memory", 5.21)]


def test_error_bounds_of_the_main_results() -> None:
    ((_, found),) = tables("tab:mainres_standard-stddev")
    printed = [with_deviation(value) for value in found[-1][1:]]
    assert [error for error, _ in printed] == list(MAIN["GeoMaNO"])
    assert dict(zip(("navier_stokes", "darcy"), [bound for _, bound in printed], strict=True)) == DEVIATION


def test_ablation() -> None:
    scans, positions = {"Vanilla": "1d", "2D": "2d"}, {r"\checkmark": True, "None": False}
    printed = {
        TITLES[caption]: {
            (scans[ssm], positions[position], mask.lower()): float(error) for ssm, position, mask, error in found[1:]
        }
        for caption, found in tables("tab:ablations")
    }
    assert printed == ABLATION
    assert [len(found) for _, found in tables("tab:ablations")] == [13, 13]  # no row hides another


def test_image_classification() -> None:
    ((_, found),) = tables("tab:imagenet100-classification")
    assert {mask.lower(): float(accuracy) for _, mask, accuracy in found[1:]} == IMAGENET_100


def test_sizes_and_training_of_the_recipes() -> None:
    """Cells of several rows are printed once, in the first of them."""
    ((_, sizes),) = tables("tab:model_detail")
    ((_, training),) = tables("tab:training_detail")
    shared_size, shared_training = sizes[1], training[1]
    for size, trained in zip(sizes[1:], training[1:], strict=True):
        problem = TITLES[size[0]]
        depth, dstate, embedding = (cell or shared for cell, shared in zip(size[1:], shared_size[1:], strict=True))
        paper = [cell.strip("{}") for cell in (depth, embedding, dstate)]
        assert tuple(int(cell) for cell in paper) == PUBLISHED_SIZE[problem]
        recipe = load_recipe(problem)
        assert isinstance(recipe.model, GeomanoConfig)
        assert (recipe.model.depth, recipe.model.embedding, recipe.model.dstate) == PUBLISHED_SIZE[problem]
        cells = [cell or shared for cell, shared in zip(trained, shared_training, strict=True)]
        loss, epochs, rate, optimizer, scheduler, batch = (cell.strip("{}") for cell in cells[1:])
        assert TITLES[trained[0]] == problem
        assert (r"+ 0.1\mathcal{L}_{\mathrm{g}}" in loss) == (recipe.loss.gradient_weight == 0.1)
        assert ("+" in loss) == (recipe.loss.gradient_weight != 0)
        assert (int(epochs), int(batch)) == (recipe.training.epochs, recipe.training.batch_size)
        assert rate == r"$3 \times 10^{-4}$"
        assert recipe.training.lr == 3e-4
        assert (optimizer.lower(), scheduler.lower()) == (recipe.training.optimizer, f"{recipe.training.scheduler}lr")
