"""The shapes that a recipe's model will see, told by its store, or by how its data would be made."""

from geomano_hpc.config import DataConfig
from geomano_hpc.data import Signature
from geomano_hpc.data_prep.problems import problem
from geomano_hpc.data_prep.store import open_store
from geomano_hpc.errors import ConfigError, DataError


def data_shape(data: DataConfig, step_frames: int = 1) -> tuple[int, int, int, int]:
    """Height, width, channels in, channels out. A rollout predicts one frame at a time, or a few."""
    if data.store.is_dir():
        store = open_store(data.store)
        known = Signature.of(store.card).in_steps_of(step_frames)
        height, width, *more = store.grid
        if more:
            raise ConfigError(f"{data.store}: holds volumes, and no model here takes them yet; take planes of them")
        return height, width, known.in_channels, known.out_channels
    if data.generate is not None:
        return *data.generate.kept_points, problem(data.generate.problem).frames_in or 1, step_frames
    raise DataError(f"{data.store}: no such store, so the grid is not known; give it with --shape H W C")
