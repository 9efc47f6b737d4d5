"""A trained run as a file for other programs: torch.export (.pt2) and ONNX (.onnx), physical units in and out.

Axes: B samples, H x W grid, C channels (frames of a rollout).
"""

import contextlib
import json
import logging
import re
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from geomano_hpc import __version__
from geomano_hpc.atomic import replacing
from geomano_hpc.errors import BackendError, ConfigError, GeomanoError
from geomano_hpc.models import build_model
from geomano_hpc.models.geomano import GeoMaNO
from geomano_hpc.training.predict import Predictor
from geomano_hpc.training.sampling import axes_of, place
from geomano_hpc.training.tasks import Task

logger = logging.getLogger(__name__)

FORMATS = ("pt2", "onnx")

CARD = "geomano_hpc.json"  # the extra file in a .pt2; in ONNX a metadata property without the suffix
_NEEDS_IMPORT = "calls operators of geomano_hpc: `import geomano_hpc` before torch.export.load"
_FOR_ONNX = ("onnx", "onnxscript")


class ExportedRun(nn.Module):
    """Normalise, call the model, and back to physical units; some frames of a rollout."""

    def __init__(self, model: nn.Module, task: Task, steps: int) -> None:
        super().__init__()
        self.model, self.task, self.steps = model, task, steps

    def forward(self, fields: torch.Tensor) -> torch.Tensor:
        """[B, H, W, C] -> [B, H, W, C]"""
        return self.task.roll_out(self.model, fields, self.steps)


def export_run(
    predictor: Predictor, out: Path, kind: str, batch: int | Literal["dynamic"], any_grid: bool, steps: int | None
) -> dict[str, Any]:
    """Write the file; returns its card, which is in the file, too."""
    if kind not in FORMATS:
        raise ConfigError(f"{out}: format is {kind!r}; choose {' or '.join(FORMATS)}")
    if batch != "dynamic" and (not isinstance(batch, int) or isinstance(batch, bool) or batch < 1):
        raise ConfigError(f"export: batch is {batch!r}, expected 'dynamic' or a number from 1 on")
    if any_grid and predictor.tied_to_grid:
        raise ConfigError(f"export: {predictor.tied_to_grid} is tied to the grid of its training; leave any grid out")
    if kind == "onnx":
        _check_onnx(predictor)
    steps = predictor.frames(1 if steps is None and predictor.is_rollout else steps)
    torch._dynamo.reset()  # what was exported before in this process must not decide what can be exported now
    model = _on_cpu(predictor, kind)
    _place(model, predictor, any_grid)
    exported = ExportedRun(model, predictor.task, steps).requires_grad_(False).eval()
    H, W = predictor.alone.grid
    example = torch.zeros(2 if batch == "dynamic" else batch, H, W, predictor.known.in_channels)
    free: dict[int, Any] = {0: torch.export.Dim("batch")} if batch == "dynamic" else {}
    if any_grid:
        free |= {axis: torch.export.Dim(name, min=2) for axis, name in ((1, "H"), (2, "W")) if example.shape[axis] > 1}
    with _one_line_errors(predictor, kind), torch.no_grad(), _quietly():
        program = torch.export.export(exported, (example,), dynamic_shapes={"fields": free or None})
        card = _card(predictor, program, example, free, steps)
        card["grid"] = "any, its points counted" if any_grid else "of the training"
        _say_what_is_needed(program)
        with replacing(out) as temporary:
            (_save_pt2 if kind == "pt2" else _save_onnx)(program, temporary, card)
    return card


def _on_cpu(predictor: Predictor, kind: str) -> nn.Module:
    """The model as it is now, with a scan that the file can hold.

    A .pt2 calls the operator, which chooses its backend where it runs; ONNX gets loops of plain operations.
    """
    config = predictor.config
    if hasattr(config, "scan_backend"):
        config = config.model_copy(update={"scan_backend": "auto" if kind == "pt2" else "loop"})
    model = build_model(config, predictor.known.seen_channels, predictor.known.out_channels, predictor.alone.grid)
    model.load_state_dict({name: weights.cpu() for name, weights in predictor.model.state_dict().items()})
    return model


def _place(model: nn.Module, predictor: Predictor, any_grid: bool) -> None:
    """A file has the kernels of one spacing. One for any grid counts points, which is right at the training's spacing,
    and says so."""
    axes = axes_of(predictor.known, predictor.alone.grid)
    place(model, axes, axes, predictor.source)
    if any_grid and isinstance(model, GeoMaNO) and not model.counts_points:
        model.place(model.sampling.in_pixels)
        logger.warning(
            "%s: a file for any grid counts points and does not know how far they lie apart: on other grids than %d x "
            "%d it errs more than the run itself; export a file for each grid where that matters",
            predictor.source,
            *predictor.alone.grid,
        )


def _card(
    predictor: Predictor, program: torch.export.ExportedProgram, example: torch.Tensor, free: dict[int, Any], steps: int
) -> dict[str, Any]:
    shape = [free[axis].__name__ if axis in free else size for axis, size in enumerate(example.shape)]
    uses_ours = any(_is_ours(node) for node in program.graph.nodes)
    return {
        "geomano_hpc": __version__,
        "torch": torch.__version__,
        "needs": f"this model {_NEEDS_IMPORT}" if uses_ours else None,
        "kind": predictor.known.kind,
        "frames": steps if predictor.is_rollout else None,
        "inputs": [*predictor.known.inputs, *predictor.known.context],
        "targets": list(predictor.known.targets),
        "input": shape,
        "output": [*shape[:-1], steps * len(predictor.known.targets)],
        "units": "physical",
        "precision": predictor.task.precision,
    }


def _say_what_is_needed(program: torch.export.ExportedProgram) -> None:
    """In place of the lines of this program, with the folders of this machine, that torch notes at every node. torch
    shows the note where it cannot find the operator of a node, and that is where this is needed."""
    for module in program.graph_module.modules():  # loops have graphs of their own
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)
            if _is_ours(node):
                node.meta["stack_trace"] = f"This model {_NEEDS_IMPORT}."


def _is_ours(node: torch.fx.Node) -> bool:
    return str(node.target).startswith("geomano_hpc.")


def _save_pt2(program: torch.export.ExportedProgram, file: Path, card: dict[str, Any]) -> None:
    with file.open("wb") as opened:
        torch.export.save(program, opened, extra_files={CARD: json.dumps(card)})


def _save_onnx(program: torch.export.ExportedProgram, file: Path, card: dict[str, Any]) -> None:
    written = torch.onnx.export(
        program, dynamo=True, verbose=False, input_names=["fields"], output_names=["prediction"]
    )
    assert written is not None
    written.model.metadata_props["geomano_hpc"] = json.dumps(card)
    written.save(file)


def _check_onnx(predictor: Predictor) -> None:
    missing = [name for name in _FOR_ONNX if find_spec(name) is None]
    if missing:
        raise BackendError(
            f"export: ONNX needs {' and '.join(missing)}, not installed here: pip install 'geomano_hpc[onnx]'"
        )
    if predictor.task.precision != "float32":
        raise ConfigError(
            f"export: {predictor.source} computes in {predictor.task.precision} by autocast, which ONNX does not know; "
            "export it as pt2"
        )


@contextlib.contextmanager
def _one_line_errors(predictor: Predictor, kind: str) -> Iterator[None]:
    try:
        yield
    except GeomanoError:
        raise
    except Exception as error:  # an exporter has a hundred ways to refuse a model
        raise BackendError(
            f"export: torch {torch.__version__} cannot export {predictor.source} as {kind} ({_reason(error)})"
        ) from error


def _reason(error: BaseException) -> str:
    """Of a chain of errors the first has the reason, the others advice for developers."""
    while error.__cause__ is not None:
        error = error.__cause__
    tied = re.match(r"Constraints violated \((.*?)\)", str(error))
    if tied:
        advice = "give a number of samples" if tied[1] == "batch" else "leave any grid out"
        return f"the model's code is tied to one {tied[1]}: {advice}"
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """The exporters talk about packages that are not there and about their own deprecations."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
