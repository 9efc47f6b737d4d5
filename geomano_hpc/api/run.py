"""`load`: a trained run, and its predictions. Axes: B samples, H x W grid, C channels (frames of a rollout)."""

from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import nn

from geomano_hpc.api.result import Result
from geomano_hpc.config import Recipe
from geomano_hpc.data_prep.store import Normaliser
from geomano_hpc.errors import ConfigError, DataError, in_one_line
from geomano_hpc.training.predict import BATCH_SIZE, Predictor, load_predictor, parts_of
from geomano_hpc.training.records.run_folder import RunFolder

Fields = TypeVar("Fields", np.ndarray, torch.Tensor)


class Run:
    """A trained model with all that it needs to predict in physical units. `load` makes it.

    Attributes:
        path: the run folder, or the file of weights
        model: the network (torch.nn.Module), which takes and gives normalised fields, of a rollout as the recipe's
            keys `rollout` say (the last given frames only, increments); `predict` takes and gives frames in any case
        device: where the model is
        recipe: the run's whole configuration; None if only the weights were loaded
        result: the numbers of the finished training; None if only the weights were loaded, or it has not finished
        kind: "steady" (fields to other fields) or "rollout" (first frames to the frames that follow)
        grid: (H, W) of the training
        inputs: names of the input's fields; of a rollout those of one frame
        targets: names of the target's fields; of a rollout those of one frame
        context: names of what a rollout's input has behind its frames: static fields and constants
        in_channels: C of an input: the fields of each given frame, frame by frame, then the context
        out_channels: C of the network's output: of a rollout the fields of one frame, or of a few, or what they add
        frames: C of the whole target: the fields of each frame that a rollout was trained to predict
        input_normaliser: mean and std of the training inputs
        target_normaliser: mean and std of the training targets; of a rollout of one frame

    Examples:
        >>> import geomano_hpc as gm
        >>> run = gm.load("runs/darcy/seed-0", device="cpu")
        >>> run
        Run(runs/darcy/seed-0: GeoMaNO, steady, trained on 9 x 9 points, 1 -> 1 channels, on cpu)
        >>> run.recipe.training.epochs
        1
    """

    def __init__(self, path: Path, predictor: Predictor, recipe: Recipe | None, result: Result | None) -> None:
        self._predictor = predictor
        self.path, self.recipe, self.result = path, recipe, result
        self.model: nn.Module = predictor.model
        self.device: torch.device = predictor.device
        known = predictor.known
        self.kind: str = known.kind
        self.grid: tuple[int, int] = predictor.alone.grid
        self.inputs, self.targets, self.context = known.inputs, known.targets, known.context
        self.in_channels: int = known.in_channels
        self.out_channels: int = known.out_channels
        self.frames: int = known.target_channels
        self.input_normaliser: Normaliser = known.input_normaliser
        self.target_normaliser: Normaliser = known.target_normaliser

    def __repr__(self) -> str:
        return (
            f"Run({self.path}: {type(self.model).__name__}, {self.kind}, trained on {self.grid[0]} x {self.grid[1]} "
            f"points, {self.in_channels} -> {self.frames} channels, on {self.device})"
        )

    def predict(self, fields: Fields, *, steps: int | None = None, batch_size: int = BATCH_SIZE) -> Fields:
        """Predict from fields in physical units, without gradients, on `run.device`.

        Args:
            fields: a numpy array or a torch tensor. One sample is [H, W] or [H, W, C], many are [B, H, W, C]; where the
                model takes one channel, many may be [B, H, W] too. Channels are `run.inputs` in their order; a rollout
                has those of its first frames, frame by frame, and then `run.context`. Any grid will do, except for the
                encoder `global`.
            steps: frames of a rollout, each predicted from those before it; by default as many as were trained
            batch_size: samples that are computed at a time

        Returns:
            what was given: a numpy array for one, a tensor on the same device for a tensor; float32, in physical
            units. Axes as in `fields`: [H, W] gives [H, W] if the target has one channel, [B, H, W, C] gives
            [B, H, W, channels of the target], a rollout [H, W, steps * fields].

        Raises:
            DataError: the shape does not fit the model, or the fields are not real numbers
            ConfigError: `steps` for a steady problem, or a batch of less than one sample

        Examples:
            >>> import geomano_hpc as gm, numpy as np
            >>> run = gm.load("runs/darcy/seed-0")
            >>> run.predict(np.full((9, 9), 3.0)).shape
            (9, 9)
            >>> a, u = gm.open_dataset("data/darcy.zarr", split="test")[:]
            >>> run.predict(a).shape
            torch.Size([4, 9, 9, 1])
            >>> rollout = gm.load("runs/navier_stokes/seed-0")
            >>> rollout.predict(np.zeros((2, 8, 8, 10)), steps=3).shape
            (2, 8, 8, 3)
        """
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ConfigError(f"predict: batch_size is {batch_size!r}, expected a whole number of at least 1")
        given = _tensor(fields)
        layout = self._predictor.layout(tuple(given.shape), "predict: the array")
        given_BHWC = layout.with_all_axes(given)
        parts = [self._predictor.predict(given_BHWC[part], steps) for part in parts_of(len(given_BHWC), batch_size)]
        predicted = layout.without(torch.cat([part.to(given.device) for part in parts]))
        return predicted if isinstance(fields, torch.Tensor) else predicted.numpy()

    def export(
        self,
        out: str | Path,
        *,
        format: Literal["pt2", "onnx"] | None = None,  # noqa: A002
        batch: int | Literal["dynamic"] = 1,
        any_grid: bool = False,
        steps: int | None = None,
    ) -> dict[str, Any]:
        """Write the trained model to a file for other programs, as `geomano export` does.

        The file takes and gives fields in physical units: [B, H, W, C] -> [B, H, W, channels of the target]. It is for
        predictions: it has no gradients.

        Args:
            out: the file to write
            format: "pt2" is read by `torch.export.load` in a process that did `import geomano_hpc`, whose operator it
                calls. "onnx" has the scan as loops of plain operations; it needs the extra `geomano_hpc[onnx]`. By
                default as the name of the file ends.
            batch: samples of a call, or "dynamic" for any number
            any_grid: take any grid instead of that of the training; not with the encoder `global`
            steps: frames of a rollout in one call; by default one, the next, to be fed back

        Returns:
            the card that is in the file, too: shapes of input and output, frames, and what it needs

        Raises:
            BackendError: the exporter is not installed, or refuses the model
            ConfigError: a format or batch that is not known

        Examples:
            >>> import geomano_hpc as gm, torch
            >>> run = gm.load("runs/darcy/seed-0")
            >>> run.export("darcy.pt2", batch="dynamic")["output"]
            ['batch', 9, 9, 1]
            >>> a, u = gm.open_dataset("data/darcy.zarr", split="test")[:]
            >>> network = torch.export.load("darcy.pt2").module()
            >>> torch.allclose(network(a), run.predict(a), rtol=1e-4, atol=1e-6)
            True
        """
        from geomano_hpc.api.export import export_run  # torch's exporters take a second to import

        out = Path(out)
        return export_run(self._predictor, out, format or out.suffix.removeprefix("."), batch, any_grid, steps)


def load(path: str | Path, *, best: bool | None = None, device: str | torch.device | None = None) -> Run:
    """Load a trained run, to predict with it.

    Args:
        path: a run folder, or one of its .safetensors files, which stand alone
        best: of a run folder the weights that the validation split chose (True) or those of the last epoch (False); by
            default those that its result is of
        device: such as "cpu" or "cuda:1"; by default the first GPU, or the CPU where there is none

    Raises:
        ConfigError: not a run folder, no such file, or a device that is not here
        GeomanoError: the run has no trained weights yet, or they cannot be read

    Examples:
        >>> import geomano_hpc as gm
        >>> run = gm.load("runs/darcy/seed-0")
        >>> alone = gm.load("runs/darcy/seed-0/model.safetensors")
        >>> a, u = gm.open_dataset("data/darcy.zarr", split="test")[0]
        >>> bool((run.predict(a) == alone.predict(a)).all())
        True
    """
    path = Path(path)
    if path.suffix == ".safetensors":
        return _load_file(path, best, device)
    if not path.is_dir():
        raise ConfigError(f"{path}: no such run folder or .safetensors file")
    folder = RunFolder(path)
    recipe, record = folder.recipe(), folder.result()
    predictor = load_predictor(recipe, folder.weights(best), device, source=str(path))
    return Run(path, predictor, recipe, None if record is None else Result.from_record(path, record))


def _load_file(file: Path, best: bool | None, device: str | torch.device | None) -> Run:
    if best:
        raise ConfigError(f"{file}: best=True chooses among the weights of a run folder; this is one file")
    if not file.is_file():
        raise ConfigError(f"{file}: no such file")
    return Run(file, load_predictor(None, file, device), None, None)


def _tensor(fields: Any) -> torch.Tensor:
    if isinstance(fields, torch.Tensor):
        if fields.is_complex():
            raise DataError("predict: the tensor is complex; the model takes real numbers")
        return fields
    if isinstance(fields, tuple):
        raise DataError("predict: takes one array, found a tuple; of a data set give the input only, dataset[i][0]")
    if isinstance(fields, np.ma.MaskedArray):
        raise DataError("predict: the array has a mask, which the model cannot see; fill it first")
    try:
        array = np.asarray(fields)
    except ValueError as error:
        raise DataError(f"predict: not an array ({in_one_line(error)})") from error
    if array.dtype.kind not in "fiu":
        raise DataError(f"predict: takes an array of real numbers, found {type(fields).__name__} of {array.dtype}")
    return torch.from_numpy(np.array(array, dtype=np.float32))
