import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from geomano_hpc.bench.train import efficiency, loop
from geomano_hpc.bench.train.efficiency import Case, bench_train, cases, efficiency_table
from geomano_hpc.errors import GeomanoError
from geomano_hpc.kernels import geo_scan
from geomano_hpc.models.parts import geomamba
from geomano_hpc.models.transolver import TransolverConfig

CASES = cases()
TINY = replace(
    CASES["darcy"],
    size=replace(CASES["darcy"].size, grid=(32, 33)),
    transolver=TransolverConfig(depth=1, embedding=16, slices=4),
)


@pytest.mark.slow
def test_models_are_timed_in_turns_and_the_table_has_the_papers_numbers_beside(tmp_path: Path) -> None:
    out = tmp_path / "train.json"
    content = bench_train({"darcy": TINY}, rounds=1, out=out, loop=list)
    assert json.loads(out.read_text()) == content
    ours, other = content["rows"]
    assert (ours["model"], other["model"]) == ("GeoMaNO", "Transolver")
    assert min(row[time] for row in (ours, other) for time in ("train_s", "infer_s")) > 0
    assert ours["memory_mib"] > 50  # about 110; a measurement is wrong by a few
    train_ratio = next(one for one in content["measurements"] if one["name"] == "darcy train")
    assert train_ratio["value"] == ours["train_s"] / other["train_s"]
    assert train_ratio["at_most"] == 0.25
    assert "0.77" in train_ratio["detail"]
    assert "23.98" in efficiency_table(content)[2]


def test_cases_are_the_papers_configurations() -> None:
    for case in CASES.values():
        assert Case.from_json(json.loads(json.dumps(case.to_json()))) == case
        models = efficiency.configurations(case)
        assert models["GeoMaNO"].name == "geomano"
    assert sum(
        one.numel() for one in efficiency.step_of(CASES["darcy"], CASES["darcy"].transolver).model.parameters()
    ) == (2_826_945)


def test_model_with_a_wrong_scan_gets_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(x: torch.Tensor, *arguments: object, **named: object) -> torch.Tensor:
        y = geo_scan(x, *arguments, **named)  # type: ignore[arg-type]
        return y if named["backend"] == "reference" else y + 0.01 * x

    monkeypatch.setattr(geomamba, "geo_scan", wrong)
    with pytest.raises(GeomanoError, match="is wrong by"):
        bench_train({"darcy": TINY}, rounds=1, out=tmp_path / "train.json", loop=list)
    assert not (tmp_path / "train.json").exists()


@pytest.mark.ranks
@pytest.mark.slow(30)
def test_loop_is_timed_against_bare_steps_and_two_ranks_against_one() -> None:
    measured = {one.name: one for one in loop.measure(depth=1, steps=4, grid=8)}
    assert measured["loop over bare steps"].value > 0
    assert 0 <= measured["waiting for data"].value < 100
    assert measured["two ranks over one"].value > 0
    assert [one.at_most for one in measured.values()] == [1.03, 2.0, 0.6]
