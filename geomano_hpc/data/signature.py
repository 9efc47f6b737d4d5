"""What goes into a model and comes out of it, by name: read from a store's card, and kept with the weights.

An input has as its last axis: the fields of each given frame, frame by frame; then, of a rollout, what does not change
in time. A target has the fields of each frame to predict. A steady problem has one frame of each.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from geomano_hpc.data_prep.store_card import Axis, Field, Normaliser, StoreCard


@dataclass(frozen=True)
class Signature:
    kind: str
    inputs: tuple[str, ...]  # fields of a given frame
    targets: tuple[str, ...]  # fields of a frame to predict
    input_normaliser: Normaliser
    target_normaliser: Normaliser
    context: tuple[str, ...] = ()  # given beside the frames of a rollout: static fields and constants
    frames_in: int = 1
    frames_out: int = 1
    step_frames: int = 1  # that one call of the model predicts
    boundary: tuple[str, ...] = ("unknown", "unknown")  # along the axes of the grid
    units: tuple[str, ...] = ()  # of the targets
    axes: tuple[Axis, ...] = ()  # of the grid, along H and W; none where nobody said
    last_frames: int | None = None  # the model sees only the last so many of the given ones
    increments: Normaliser | None = None  # of the model's output, where it is what frames add to the last one it sees

    @property
    def is_rollout(self) -> bool:
        return self.kind == "rollout"

    @property
    def in_channels(self) -> int:
        """Of an input; the model may see fewer."""
        return self.frames_in * len(self.inputs) + len(self.context)

    @property
    def window_channels(self) -> int:
        """Of an input: those of its frames, without what is the same in each of them."""
        return self.frames_in * len(self.inputs)

    @property
    def seen_frames(self) -> int:
        """Of the given ones: those that the model sees."""
        return self.last_frames or self.frames_in

    @property
    def seen_channels(self) -> int:
        """Of the model's input."""
        return self.seen_frames * len(self.inputs) + len(self.context)

    @property
    def seen_normaliser(self) -> Normaliser:
        """Of the model's input: that of a given one, without the frames that the model does not see."""
        mean, std, unseen = self.input_normaliser.mean, self.input_normaliser.std, self.in_channels - self.seen_channels
        if not unseen or not isinstance(mean, tuple) or not isinstance(std, tuple):
            return self.input_normaliser
        return Normaliser(mean[unseen:], std[unseen:])

    @property
    def out_channels(self) -> int:
        """Of the model."""
        return self.step_frames * len(self.targets)

    @property
    def target_channels(self) -> int:
        return self.frames_out * len(self.targets)

    def in_steps_of(self, frames: int) -> "Signature":
        return replace(self, step_frames=frames)

    def on_grid(self, grid: tuple[int, ...]) -> "Signature":
        """The same domain on a grid of another size, whose first point is the same."""
        if not self.axes:
            return self
        return replace(self, axes=tuple(_with_points(axis, n) for axis, n in zip(self.axes, grid, strict=True)))

    @property
    def step_normaliser(self) -> Normaliser:
        """Of the model's output: that of a frame, for each of its frames."""
        return _repeated(self.target_normaliser, len(self.targets), self.step_frames)

    def to_json(self) -> dict[str, Any]:
        return {
            "task": self.kind,
            "inputs": self.inputs,
            "targets": self.targets,
            "context": self.context,
            "normalisers": {
                name: {"mean": one.mean, "std": one.std}
                for name, one in (("input", self.input_normaliser), ("target", self.target_normaliser))
            },
            "frames_in": self.frames_in,
            "frames_out": self.frames_out,
            "step_frames": self.step_frames,
            "boundary": self.boundary,
            "units": self.units,
            "axes": [asdict(axis) for axis in self.axes],
            **({} if self.last_frames is None else {"last_frames": self.last_frames}),
            **({} if self.increments is None else {"increments": asdict(self.increments)}),
        }

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> "Signature":
        """As weights keep it; those of older versions knew one field of a rollout, and no names."""
        given, target = (Normaliser.from_json(content["normalisers"][name]) for name in ("input", "target"))
        if "inputs" in content:
            words: dict[str, Any] = {
                name: tuple(content[name]) for name in ("inputs", "targets", "context", "boundary", "units")
            }
            numbers = {name: content[name] for name in ("frames_in", "frames_out", "step_frames")}
            words["axes"] = tuple(Axis(**axis) for axis in content.get("axes", ()))
            words["last_frames"] = content.get("last_frames")
            if "increments" in content:
                words["increments"] = Normaliser.from_json(content["increments"])
            return Signature(content["task"], input_normaliser=given, target_normaliser=target, **words, **numbers)
        if content["task"] == "rollout":
            frames = {"frames_in": content["in_channels"], "frames_out": content["frames"]}
            return Signature("rollout", ("u",), ("u",), given, target, **frames)
        names = [tuple(f"{word}.{n}" for n in range(content[key])) for word, key in _OLDER]
        return Signature("steady", names[0], names[1], given, target)

    @staticmethod
    def of(card: StoreCard) -> "Signature":
        windows = card.windows
        frames_in, frames_out = (1, 1) if windows is None else (windows.frames_in, windows.frames_out)
        given: list[Field] = [*card.inputs] * frames_in + [*card.context]
        fields, context = card.inputs, card.context
        if card.kind == "steady":  # nothing is predicted from a prediction: all of it is input
            fields, context = (*fields, *context), ()
        return Signature(
            card.kind,
            tuple(field.name for field in fields),
            tuple(field.name for field in card.targets),
            Normaliser.of(given),
            Normaliser.of(card.targets),
            tuple(field.name for field in context),
            frames_in,
            frames_out,
            boundary=card.boundary,
            units=tuple(field.units for field in card.targets),
            axes=(Axis("", 1), *card.axes) if card.is_line else card.axes,
        )


_OLDER = (("input", "in_channels"), ("target", "out_channels"))


def _with_points(axis: Axis, points: int) -> Axis:
    if axis.points == points or axis.spacing is None:
        return replace(axis, points=points)
    return replace(axis, points=points, spacing=axis.spacing * steps_between(axis, points))


def steps_between(axis: Axis, points: int) -> float:
    """Steps of the axis from one point to the next of so many on the same domain. A periodic axis is parted into its
    points, any other one into its intervals."""
    if 1 in (axis.points, points):
        return 1.0
    return axis.points / points if axis.boundary == "periodic" else (axis.points - 1) / (points - 1)


def _repeated(normaliser: Normaliser, fields: int, times: int) -> Normaliser:
    if not isinstance(normaliser.mean, tuple) or not isinstance(normaliser.std, tuple):
        return normaliser
    assert len(normaliser.mean) == fields
    return Normaliser(normaliser.mean * times, normaliser.std * times)
