"""Whether a run was made like a row of the paper: how it differs from all that is known of the row, in words.

A number stands beside a published one without a mark only where nothing differs.
"""

import math
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from geomano_hpc.config import ComputeConfig, LossConfig, Recipe, RolloutConfig, TrainingConfig
from geomano_hpc.report.data_facts import DataFacts
from geomano_hpc.report.published_settings import DATA, OF_COST, WITHOUT_EFFECT, PublishedData, Settings, settings_of

_WORDS = {
    "loss.name": "loss",
    "loss.options": "options of the loss",
    "loss.gradient_weight": "gradient loss",
    "training.batch_size": "batch",
    "training.weight_decay": "weight decay",
    "rollout.target": "output of the model",
    "rollout.frames_in": "limit of the frames seen",
    "rollout.steps_per_window": "limit of the windows to a step",
    "rollout.pairs": "steps trained on",
}
_WARMUP = 0.3  # of onecycle, where a recipe does not say


def differences(problem: str, recipe: Recipe, data: DataFacts, of_cost: bool = False) -> list[str]:
    """How a run differs from what the published number was made with, as far as it can be told; `of_cost`: only in
    what the time of an epoch depends on. Of a model that the paper does not have, only its data is compared."""
    settings = settings_of(problem, recipe.model.model_dump(mode="json")) or Settings()
    return [*_of_data(DATA[problem], data, of_cost), *_of_recipe(recipe, settings, of_cost), *settings.doubts]


def _of_recipe(recipe: Recipe, settings: Settings, of_cost: bool) -> Iterator[str]:
    """Keys that a row says nothing of must have their defaults; the keys of a model have none that holds forever."""
    if not settings.keys:
        return
    found = _keys(training=recipe.training, rollout=recipe.rollout, loss=recipe.loss, compute=recipe.compute)
    usual = _keys(training=TrainingConfig(), rollout=RolloutConfig(), loss=LossConfig(), compute=ComputeConfig())
    paper = {**usual, **settings.keys}
    model = {f"model.{key}": value for key, value in recipe.model.model_dump(mode="json").items()}
    for key, value in (found | model).items():
        if not _counts(key, of_cost):
            continue
        if key not in paper:
            yield f"{_word(key)} {_value(value)}, of which the published model has nothing"
        elif not _same(key, value, paper[key]):
            yield _differs(key, value, paper[key])
    yield from (f"{_word(key)} not recorded" for key in paper if key.startswith("model.") and key not in model)


def _counts(key: str, of_cost: bool) -> bool:
    if of_cost and key in OF_COST:
        return True
    return key not in WITHOUT_EFFECT and (not of_cost or key.startswith(("model.", "loss.", "rollout.")))


def _keys(**sections: Any) -> dict[str, Any]:
    contents = {name: section.model_dump(mode="json") for name, section in sections.items()}
    return {f"{name}.{key}": value for name, content in contents.items() for key, value in content.items()}


def _same(key: str, one: Any, other: Any) -> bool:
    if key == "training.warmup":
        one, other = (_WARMUP if value is None else value for value in (one, other))
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (one, other))
    return math.isclose(one, other) if numbers else bool(one == other)


def _differs(key: str, value: Any, paper: Any) -> str:
    if key == "training.epochs":
        return f"{value} of {paper} epochs"
    return f"{_word(key)} {_value(value)}, not {_value(paper)}"


def _word(key: str) -> str:
    return _WORDS.get(key) or key.partition(".")[2].replace("_", " ")


def _value(value: Any) -> str:
    if value is None or value == {}:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _of_data(paper: PublishedData, data: DataFacts, of_cost: bool) -> Iterator[str]:
    if not of_cost:
        yield from _of_origin(paper, data)
    for name, published in (("train", paper.train_samples), ("test", paper.test_samples)):
        used = data.train_samples if name == "train" else data.test_samples
        if used is not None and used != published:
            yield f"{used} of {published} {'training' if name == 'train' else 'test'} samples"
    if data.validation_samples:
        yield f"{data.validation_samples} validation samples, where the paper has none"
    if not data.at_hand:
        yield "data not at hand: its grid and samples are not checked"
        return
    side = paper.side
    if data.grid is not None and data.grid != (side, side):
        yield f"{' x '.join(map(str, data.grid))} points, not {side} x {side}"
    if data.frames is not None and data.frames != paper.frames:
        yield f"{data.frames[0]} frames given and {data.frames[1]} predicted"


def _of_origin(paper: PublishedData, data: DataFacts) -> Iterator[str]:
    """Where the numbers come from, and what was done to them."""
    if not data.at_hand:
        return
    if data.generated:
        yield "data generated, not the benchmark's files"
    elif data.files is None:
        yield "files of the data not recorded"
    elif tuple(PurePath(name).stem for name in data.files) != paper.files:
        yield f"data of {', '.join(data.files)}, not the benchmark's files"
    if data.viscosity is not None and paper.viscosity is not None and not math.isclose(data.viscosity, paper.viscosity):
        yield f"viscosity {data.viscosity:g}, not {paper.viscosity:g}"
    if data.stride is not None and data.stride != paper.stride:
        yield f"stride {data.stride}, not {paper.stride}"
    if data.drawn:
        yield "splits of its own, not the benchmark's"
    if data.normalised is not None and data.normalised != paper.normalised:
        yield "normalised" if data.normalised else "not normalised"
