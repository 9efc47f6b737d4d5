"""What the report knows of the data of a run: from the store if it is here, or from how it is made."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from geomano_hpc.config import DataConfig, GenerateConfig
from geomano_hpc.data_prep.store import Store, open_store
from geomano_hpc.errors import GeomanoError


@dataclass(frozen=True)
class DataFacts:
    """None is what is not known. Samples are those that the recipe uses."""

    problem: str = ""
    protocol: str | None = None  # the benchmark's problem; None for any other one, whatever its name
    at_hand: bool = False
    grid: tuple[int, ...] | None = None
    train_samples: int | None = None
    validation_samples: int | None = None
    test_samples: int | None = None
    generated: bool | None = None  # by this package; the others are files from elsewhere
    files: tuple[str, ...] | None = None
    viscosity: float | None = None
    stride: int | None = None
    frames: tuple[int, int] | None = None  # given and predicted
    normalised: bool | None = None
    drawn: bool = False  # by chance, or by lists of the user's: not the first samples to train, the last ones to test

    def with_results(self, results: Sequence[Mapping[str, Any]]) -> "DataFacts":
        """With what finished runs say of their data, which the store that is here now may not be."""
        problems = [str(result["problem"]) for result in results if result.get("problem")]
        samples = [int(result["test_samples"]) for result in results if result.get("test_samples") is not None]
        facts = self
        if any(problem != self.problem or not self.at_hand for problem in problems):
            told = [result.get("protocol", result["problem"]) for result in results if result.get("problem")]
            limits = DataFacts() if self.at_hand else self  # the counts of another store say nothing
            facts = replace(limits, problem=problems[0], protocol=told[0])
        return replace(facts, test_samples=min(samples)) if samples else facts


def data_facts(data: DataConfig) -> DataFacts:
    if data.store.is_dir():
        try:
            return _of_store(open_store(data.store), data)
        except GeomanoError:
            pass  # broken or of another time: the report says that the data was not checked
    if data.generate is not None:
        return _of_generation(data.generate, data)
    return DataFacts(train_samples=data.train_samples, test_samples=data.test_samples)


def _of_store(store: Store, data: DataConfig) -> DataFacts:
    card, sizes = store.card, store.card.splits
    origin = card.provenance
    sources = origin.get("sources", [])
    made = [source.get("generation") for source in sources]
    splits = origin.get("settings", {}).get("splits", {})
    windows, frames = card.windows, origin.get("frames", {})
    given, predicted = (
        (frames.get("input"), frames.get("target")) if windows is None else (windows.frames_in, windows.frames_out)
    )
    return DataFacts(
        card.problem,
        card.protocol,
        at_hand=True,
        grid=store.grid,
        train_samples=_used(sizes["train"], data.train_samples),
        validation_samples=_used(sizes.get("validation", 0), data.validation_samples),
        test_samples=_used(sizes["test"], data.test_samples),
        generated=any(made) if sources else None,
        files=tuple(source["name"] for source in sources) or None,
        viscosity=_viscosity(sources),
        stride=origin.get("stride"),
        frames=(given, predicted) if given and predicted and card.kind == "rollout" else None,
        normalised=card.normalised,
        drawn=splits.get("seed") is not None or any(isinstance(splits.get(name), str) for name in sizes),
    )


def _of_generation(made: GenerateConfig, data: DataConfig) -> DataFacts:
    return DataFacts(
        made.problem,
        made.problem,
        at_hand=True,
        grid=made.kept_points,
        train_samples=_used(made.train_samples, data.train_samples),
        validation_samples=0,
        test_samples=_used(made.test_samples, data.test_samples),
        generated=True,
        viscosity=made.viscosity,
        stride=made.stride,
    )


def _used(there: int, limit: int | None) -> int:
    return there if limit is None else min(there, limit)


def _viscosity(sources: Sequence[Mapping[str, Any]]) -> float | None:
    """As the generator recorded it, or as the FNO authors write it into the name: NavierStokes_V1e-5_N1200_T20.mat"""
    for source in sources:
        made = source.get("generation")
        if made:
            return None if made.get("viscosity") is None else float(made["viscosity"])
        named = re.search(r"_V(\d+(?:\.\d+)?(?:e-?\d+)?)_", PurePath(source["name"]).stem)
        if named:
            return float(named[1])
    return None
