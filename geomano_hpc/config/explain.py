"""What is wrong with a file of the user's, in one line that names the key and the closest valid one."""

import difflib
from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from geomano_hpc.errors import ConfigError

Tree = TypeVar("Tree", bound=BaseModel)

# The type of an error whose message is whole: a section that was validated by itself names its keys already.
EXPLAINED = "explained"


def validated(tree: type[Tree], content: Any, source: str, context: dict[str, Any] | None = None) -> Tree:
    """The content as this tree of keys; an error names the source and the key."""
    try:
        return tree.model_validate(content, context=context)
    except ValidationError as error:
        raise ConfigError(f"{source}: {explain(error, tree)}") from None


def closest(word: str, candidates: Iterable[str]) -> str:
    """`; did you mean 'depth'?` where something is close enough, else nothing."""
    matches = difflib.get_close_matches(word, list(candidates), n=1, cutoff=0.5)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def explain(error: ValidationError, tree: type[BaseModel], section: str = "") -> str:
    """What is wrong with a mapping, in one line that names the key and the closest valid one; `section` is where the
    mapping stands in a larger one."""
    problems = []
    for problem in error.errors():
        location = [str(part) for part in problem["loc"]]
        path = ".".join(filter(None, [section, *location]))
        if problem["type"] == EXPLAINED:
            problems.append(problem["msg"])
        elif problem["type"] == "extra_forbidden":
            keys = _keys_at(tree, location[:-1])
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
