"""A study is data: a recipe, what varies, and seeds. Planning turns it into runs with stable names.

What varies is written in three ways, which combine with each other:
axes  every combination of the values          zip  lists of equal length, taken together
rows  an explicit list, one mapping each       A key of these is a key of the recipe, or `recipe` itself.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from geomano_hpc.config import Recipe, apply_changes, load_recipe, recipe_from_mapping, recipe_names
from geomano_hpc.config.explain import validated
from geomano_hpc.config.recipe_files import RECIPES, overrides_once, parse_value
from geomano_hpc.config.yaml_files import YamlFiles
from geomano_hpc.errors import ConfigError

STUDIES = YamlFiles("study", resources.files("geomano_hpc.launch") / "studies")

TableName = Literal["main", "ablation", "efficiency", "error_bounds", "scalability"]


class Study(BaseModel):
    """A base recipe, overrides for all runs, what varies (axes, zip, rows), and seeds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    about: str = Field(default="", description="one line for the list of studies and the report")
    recipe: str
    set: dict[str, Any] = Field(default_factory=dict, description="changes for all runs")
    axes: dict[str, list[Any]] = Field(default_factory=dict, description="every combination of the values")
    zip: dict[str, list[Any]] = Field(default_factory=dict, description="values that vary together")
    rows: list[dict[str, Any]] = Field(default_factory=list, description="an explicit list of changes")
    seeds: list[int] = Field(default=[0, 1, 2, 3, 4], min_length=1)
    tables: list[TableName] = Field(default_factory=list, description="tables of the paper for the report")

    @model_validator(mode="after")
    def _every_list_has_values(self) -> "Study":
        for path, values in [*self.axes.items(), *self.zip.items()]:
            if not values:
                raise ValueError(f"{path} has no values")
        lengths = {path: len(values) for path, values in self.zip.items()}
        if len(set(lengths.values())) > 1:
            found = ", ".join(f"{path} has {length}" for path, length in lengths.items())
            raise ValueError(f"zip takes lists of equal length: {found}")
        if not all(self.rows):
            raise ValueError("a row is empty: write at least one key in it")
        return self

    @model_validator(mode="after")
    def _one_place_for_each_key(self) -> "Study":
        of_rows = dict.fromkeys(path for row in self.rows for path in row)
        paths = [*self.set, *self.axes, *self.zip, *of_rows]
        for path in paths:
            if path == "training.seed":
                raise ValueError("training.seed is varied by the study's seeds (--seeds)")
            if paths.count(path) > 1:
                raise ValueError(f"{path} is both set and varied, or varied twice; choose one")
        if "recipe" in self.set:
            raise ValueError("recipe is a key of the study itself, not of set")
        return self

    def points(self) -> Iterator[dict[str, Any]]:
        """What each variant changes, in order: rows, then zip, then axes, the last one fastest."""
        together = [dict(zip(self.zip, values, strict=True)) for values in zip(*self.zip.values(), strict=True)]
        for row, zipped, *values in itertools.product(self.rows or [{}], together or [{}], *self.axes.values()):
            yield {**row, **zipped, **dict(zip(self.axes, values, strict=True))}


@dataclass(frozen=True)
class PlannedRun:
    name: str
    recipe: Recipe
    point: dict[str, Any] = field(default_factory=dict)  # what varies, and its value here


def study_names() -> list[str]:
    return STUDIES.names()


def load_study(name_or_path: str) -> Study:
    """A shipped study, a study file, or a recipe, which makes a study of five seeds."""
    content, source = _read(name_or_path)
    if content is None:
        named = {"name": Path(name_or_path).stem if source else name_or_path, "recipe": name_or_path}
        return validated(Study, named, f"{name_or_path} gives the study its name; rename the file")
    return validated(Study, content, source)


def _read(name_or_path: str, chain: tuple[str, ...] = ()) -> tuple[dict[str, Any] | None, str]:
    """The content of a study with that of the study it is `like`; None for a recipe."""
    if name_or_path in recipe_names() and name_or_path not in study_names():
        return None, ""
    content, source = STUDIES.read(name_or_path, also=RECIPES)
    if "like" not in content:
        if "recipe" not in content:
            return None, source  # a recipe of the user's own
        return {**content, "set": _changes(content, source)}, source
    other = content.pop("like")
    if other in (*chain, name_or_path):
        raise ConfigError(f"{source}: like: {other} goes round in a circle")
    base, _ = _read(str(other), (*chain, name_or_path))
    if base is None:
        raise ConfigError(f"{source}: like: {other} is a recipe; name it with recipe: {other}")
    return {**base, **content, "set": {**base["set"], **_changes(content, source)}}, source


def _changes(content: dict[str, Any], source: str) -> dict[str, Any]:
    changes = content.get("set")
    if changes is not None and not isinstance(changes, dict):
        raise ConfigError(f"{source}: set is a mapping, such as {{model.depth: 4}} (found {changes!r})")
    return changes or {}


def with_overrides(
    study: Study, overrides: Iterable[str], axes: Iterable[str], seeds: int | None, name: str | None
) -> Study:
    """The study with what the command line adds: --set, --vary, --seeds, --name."""
    content = study.model_dump()
    content["set"].update(overrides_once(overrides))
    varied = set()
    for axis in axes:
        path, separator, values = axis.partition("=")
        if not separator or not values:
            raise ConfigError(f"--vary {axis!r}: write it as key=value,value, such as model.depth=2,4,8")
        if path in varied:
            raise ConfigError(f"--vary {path}: is given twice; write all its values once, such as {path}=2,4,8")
        varied.add(path)
        content["axes"][path] = [parse_value(value) for value in values.split(",")]
    if seeds is not None:
        content["seeds"] = list(range(seeds))
    if name is not None:
        content["name"] = name
    return validated(Study, content, f"study {study.name} with these options")


def plan(study: Study) -> list[PlannedRun]:
    """Every run, in order. The name of a run tells what varies and its seed, and ends in a hash of its recipe."""
    bases: dict[str, dict[str, Any]] = {}
    runs: dict[str, PlannedRun] = {}
    for point in study.points():
        base = str(point.get("recipe", study.recipe))
        if base not in bases:
            bases[base] = load_recipe(base).model_dump(mode="json")
        changes = {**study.set, **{path: value for path, value in point.items() if path != "recipe"}}
        for seed in study.seeds:
            content = _copied(bases[base])
            apply_changes(content, {**changes, "training.seed": seed})
            recipe = recipe_from_mapping(content, f"study {study.name}")
            run = PlannedRun(run_name(point, recipe), recipe, point)
            if run.name in runs:
                raise ConfigError(
                    f"study {study.name}: two of its runs are the same ({run.name}); look for a doubled value"
                )
            runs[run.name] = run
    return list(runs.values())


def _copied(content: Any) -> Any:
    return {key: _copied(value) for key, value in content.items()} if isinstance(content, dict) else content


def run_name(point: dict[str, Any], recipe: Recipe) -> str:
    """A folder name, at most 200 characters: however long the values are, seed and hash stay."""
    words = "".join(f"{path.rpartition('.')[2]}-{word_of(value)}_" for path, value in point.items())
    return f"{re.sub(r'[^A-Za-z0-9_.+-]', '-', words)[:170]}seed-{recipe.training.seed}_{digest(recipe)}"


def digest(recipe: Recipe) -> str:
    """Of what the recipe says beside the defaults: a key that a later version adds does not make it another run."""
    said = recipe.model_dump(mode="json", exclude_defaults=True)
    text = json.dumps([recipe.model.name, said], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def word_of(value: Any) -> str:
    """A whole group of keys, such as a model, goes by its name; the hash tells two of them apart."""
    return str(value.get("name", "group") if isinstance(value, dict) else value)
