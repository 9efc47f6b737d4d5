"""A study is data: a recipe, axes to vary, and seeds. Planning turns it into runs with stable names."""

import hashlib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from geomano_hpc.config import Recipe, apply_changes, load_recipe, recipe_from_mapping, recipe_names, to_yaml
from geomano_hpc.config.recipe_files import explain, parse_value, split_override
from geomano_hpc.errors import ConfigError

_SHIPPED = resources.files("geomano_hpc.launch") / "studies"


class Study(BaseModel):
    """A base recipe, overrides for all runs, axes whose values are combined with each other, and seeds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    recipe: str
    set: dict[str, Any] = Field(default_factory=dict)
    axes: dict[str, list[Any]] = Field(default_factory=dict)
    seeds: list[int] = Field(default=[0, 1, 2, 3, 4], min_length=1)

    @model_validator(mode="after")
    def _one_place_for_each_key(self) -> "Study":
        fixed = [*self.set, *self.axes]
        for path in fixed:
            if path == "training.seed":
                raise ValueError("training.seed is varied by the study's seeds (--seeds)")
            if fixed.count(path) > 1:
                raise ValueError(f"{path} is both set and varied; choose one")
        return self


@dataclass(frozen=True)
class PlannedRun:
    name: str
    recipe: Recipe


def study_names() -> list[str]:
    return sorted(entry.name.removesuffix(".yaml") for entry in _SHIPPED.iterdir() if entry.name.endswith(".yaml"))


def load_study(name_or_path: str) -> Study:
    """A shipped study, a study file, or a recipe, which makes a study of five seeds."""
    if name_or_path in study_names():
        text, source = (_SHIPPED / f"{name_or_path}.yaml").read_text(encoding="utf-8"), f"study {name_or_path}"
    elif name_or_path in recipe_names():
        return Study(name=name_or_path, recipe=name_or_path)
    elif Path(name_or_path).is_file():
        text, source = Path(name_or_path).read_text(encoding="utf-8"), name_or_path
    else:
        known = ", ".join([*study_names(), *recipe_names()])
        raise ConfigError(f"no study, recipe or file {name_or_path!r}; known: {known}")
    try:
        content = yaml.safe_load(text)
        if isinstance(content, dict) and "recipe" not in content:  # a recipe of the user's own
            return Study(name=Path(name_or_path).stem, recipe=name_or_path)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from None
    return _validated(content, source)


def _validated(content: Any, source: str) -> Study:
    try:
        return Study.model_validate(content)
    except ValidationError as error:
        raise ConfigError(f"{source}: {explain(error, Study)}") from None


def with_overrides(
    study: Study, overrides: Iterable[str], axes: Iterable[str], seeds: int | None, name: str | None
) -> Study:
    """The study with what the command line adds: --set, --grid, --seeds, --name."""
    content = study.model_dump()
    for override in overrides:
        path, value = split_override(override)
        content["set"][path] = value
    for axis in axes:
        path, separator, values = axis.partition("=")
        if not separator or not values:
            raise ConfigError(f"--grid {axis!r}: write it as key=value,value, such as model.depth=2,4,8")
        content["axes"][path] = [parse_value(value) for value in values.split(",")]
    if seeds is not None:
        content["seeds"] = list(range(seeds))
    if name is not None:
        content["name"] = name
    return _validated(content, f"study {study.name} with these options")


def plan(study: Study) -> list[PlannedRun]:
    """Every run of the study, in order. A run's name tells its axes and seed and carries a hash of its whole recipe."""
    base = load_recipe(study.recipe)
    runs: dict[str, PlannedRun] = {}
    for values in itertools.product(*study.axes.values()):
        point = dict(zip(study.axes, values, strict=True))
        for seed in study.seeds:
            content = base.model_dump(mode="json")
            apply_changes(content, {**study.set, **point, "training.seed": seed})
            recipe = recipe_from_mapping(content, f"study {study.name}")
            run = PlannedRun(run_name(point, recipe), recipe)
            if run.name in runs:
                raise ConfigError(
                    f"study {study.name}: two of its runs are the same ({run.name}); look for a doubled value"
                )
            runs[run.name] = run
    return list(runs.values())


def run_name(point: dict[str, Any], recipe: Recipe) -> str:
    words = [f"{path.rpartition('.')[2]}-{_word(value)}" for path, value in point.items()]
    words.append(f"seed-{recipe.training.seed}")
    digest = hashlib.sha256(to_yaml(recipe).encode()).hexdigest()[:8]
    return "_".join(word.replace("/", "-") for word in [*words, digest])


def _word(value: Any) -> str:
    """A whole group of keys, such as a model, goes by its name; the hash tells two of them apart."""
    return str(value.get("name", "group") if isinstance(value, dict) else value)
