"""The shapes that a recipe's model will see, told by its store, or by how its data would be made."""

from geomano_hpc.config import Recipe
from geomano_hpc.data import Normaliser, Signature
from geomano_hpc.data_prep.problems import problem
from geomano_hpc.data_prep.store import open_store
from geomano_hpc.errors import ConfigError, DataError
from geomano_hpc.training.rollouts import as_keyed

_ANY = Normaliser(0.0, 1.0)


def data_shape(recipe: Recipe) -> tuple[int, int, int, int]:
    """Height, width, channels in, channels out. A rollout predicts one frame at a time, or a few."""
    data = recipe.data
    if data.store.is_dir():
        store = open_store(data.store)
        known = as_keyed(Signature.of(store.card), recipe)
        height, width, *more = store.grid
        if more:
            raise ConfigError(f"{data.store}: holds volumes, and no model here takes them yet; take planes of them")
        return height, width, known.seen_channels, known.out_channels
    if data.generate is not None:
        made = problem(data.generate.problem)
        known = Signature(made.kind, ("u",), ("u",), _ANY, _ANY, (), made.frames_in or 1, made.frames_out or 1)
        known = as_keyed(known, recipe)
        return *data.generate.kept_points, known.seen_channels, known.out_channels
    raise DataError(f"{data.store}: no such store, so the grid is not known; give it with --shape H W C")
