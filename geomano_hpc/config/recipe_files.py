"""Read recipes (shipped or the user's own), apply overrides, and say in one line what is wrong with them."""

import difflib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from geomano_hpc.config.models import MODEL_CONFIGS
from geomano_hpc.config.tree import Recipe
from geomano_hpc.config.yaml_text import read_yaml, write_yaml
from geomano_hpc.errors import ConfigError

_SHIPPED = resources.files("geomano_hpc.config") / "recipes"


def recipe_names() -> list[str]:
    return sorted(entry.name.removesuffix(".yaml") for entry in _SHIPPED.iterdir() if entry.name.endswith(".yaml"))


def load_recipe(name_or_path: str, overrides: Iterable[str] = ()) -> Recipe:
    """A shipped recipe by name or a YAML file by path, with overrides such as `model.depth=4`."""
    content, source = _read(name_or_path)
    apply_changes(content, dict(split_override(override) for override in overrides))
    return recipe_from_mapping(content, source)


def split_override(text: str) -> tuple[str, Any]:
    """`model.depth=4` -> the key's path and its value."""
    path, separator, value = text.partition("=")
    if not separator or not path:
        raise ConfigError(f"--set {text!r}: write it as key=value, such as model.depth=4")
    return path.strip(), parse_value(value.strip())


def recipe_from_mapping(content: Mapping[str, Any], source: str) -> Recipe:
    try:
        return Recipe.model_validate(content)
    except ValidationError as error:
        raise ConfigError(f"{source}: {explain(error, Recipe)}") from None


def apply_changes(content: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Set keys by their paths. Another `model.name` starts from that model's own defaults, since the keys of one model
    mean nothing to another; the other changes of the model follow, in whatever order they were written."""
    name, model = changes.get("model.name"), content.get("model", {})
    if name is not None and isinstance(model, dict) and name != model.get("name", "geomano"):
        content["model"] = {"name": name}
    for path, value in changes.items():
        set_by_path(content, path, value)


def set_by_path(content: dict[str, Any], path: str, value: Any) -> None:
    """Set `model.depth` in a nested mapping. Whether the key exists is for the validation to say."""
    *parents, leaf = path.split(".")
    node = content
    for parent in parents:
        child = node.setdefault(parent, {})
        if not isinstance(child, dict):
            raise ConfigError(f"{path}: {parent} is a value, not a group of keys")
        node = child
    node[leaf] = value


def to_yaml(recipe: Recipe) -> str:
    return write_yaml(recipe.model_dump(mode="json"))


def _read(name_or_path: str) -> tuple[dict[str, Any], str]:
    if name_or_path in recipe_names():
        source = f"recipe {name_or_path}"
        text = (_SHIPPED / f"{name_or_path}.yaml").read_text(encoding="utf-8")
    elif Path(name_or_path).is_file():
        source = name_or_path
        text = Path(name_or_path).read_text(encoding="utf-8")
    else:
        hint = closest(name_or_path, recipe_names())
        raise ConfigError(
            f"no recipe or file {name_or_path!r}{hint}; shipped recipes: {', '.join(recipe_names())}; "
            "a recipe of your own is a YAML file"
        )
    content = read_yaml(text, source)
    if not isinstance(content, dict):
        raise ConfigError(f"{source}: expected a mapping of keys, found {type(content).__name__}")
    return content, source


def parse_value(text: str) -> Any:
    """Scalars stay text, which the typed tree converts: so 0011 remains a mask. Lists, mappings and null are YAML."""
    if text == "null":
        return None
    if text[:1] in ("[", "{"):
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"--set value {text!r} is not valid YAML: {' '.join(str(error).split())}") from None
    return text


def closest(word: str, candidates: Iterable[str]) -> str:
    """`; did you mean 'depth'?` where something is close enough, else nothing."""
    matches = difflib.get_close_matches(word, list(candidates), n=1, cutoff=0.5)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def explain(error: ValidationError, tree: type[BaseModel]) -> str:
    """What is wrong with a mapping, in one line that names the key and the closest valid one."""
    problems = []
    for problem in error.errors():
        location = [str(part) for part in problem["loc"]]
        keys_of = tree
        if location[:1] == ["model"] and location[1:2] and location[1] in MODEL_CONFIGS:
            keys_of, inner = MODEL_CONFIGS[location[1]], location[2:]  # pydantic puts the model's name into the path
            location = ["model", *inner]
        else:
            inner = location
        path = ".".join(location)
        if problem["type"] == "extra_forbidden":
            keys = _keys_at(keys_of, inner[:-1])
            hint = closest(location[-1], keys) or f"; valid keys here: {', '.join(keys)}"
            problems.append(f"unknown key {path}{hint}")
        elif problem["type"] == "missing":
            problems.append(f"{path} is missing")
        else:
            reason = problem["msg"].removeprefix("Value error, ")
            shown = "" if isinstance(problem["input"], dict) else f" (found {problem['input']!r})"
            problems.append(": ".join(filter(None, [path, reason])) + shown)
    return "; ".join(problems)


def _keys_at(node: type[BaseModel], location: list[str]) -> list[str]:
    for part in location:
        annotation = node.model_fields[part].annotation
        options = (annotation, *getattr(annotation, "__args__", ()))
        node = next(option for option in options if isinstance(option, type) and issubclass(option, BaseModel))
    return list(node.model_fields)
