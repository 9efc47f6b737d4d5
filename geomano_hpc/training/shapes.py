"""The shapes that a recipe's model will see, told by its store, or by how its data would be made."""

from geomano_hpc.config import DataConfig
from geomano_hpc.data_prep.problems import problem
from geomano_hpc.data_prep.store import open_store
from geomano_hpc.errors import DataError


def data_shape(data: DataConfig) -> tuple[int, int, int, int]:
    """Height, width, channels in, channels out. A rollout predicts one frame at a time."""
    if data.store.is_dir():
        store = open_store(data.store)
        _, height, width, channels = store.array("input").shape
        return height, width, channels, 1 if store.card.kind == "rollout" else store.array("target").shape[-1]
    if data.generate is not None:
        return *data.generate.kept_points, problem(data.generate.problem).input_frames or 1, 1
    raise DataError(f"{data.store}: no such store, so the grid is not known; give it with --shape H W C")
