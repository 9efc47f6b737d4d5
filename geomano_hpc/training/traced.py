"""`geomano train --trace`: the steps of a training under torch's profiler."""

import contextlib
from collections.abc import Callable

from geomano_hpc.config import Recipe
from geomano_hpc.training.distributed.together import ranks_together
from geomano_hpc.training.records.checkpoint import Position
from geomano_hpc.training.records.run_folder import RunFolder
from geomano_hpc.training.setup import set_up
from geomano_hpc.training.start import prepare
from geomano_hpc.training.steps import Steps
from geomano_hpc.training.trace import steps_to_measure, tracing


def trace(recipe: Recipe, folder: RunFolder, say: Callable[[str], None]) -> None:
    """Some steps under torch's profiler. Nothing of the training is kept, and none of its checkpoints is read."""
    with contextlib.ExitStack() as held, ranks_together(recipe.training.rank_timeout) as (ranks, watch):
        as_found = folder.noted()
        prepare(recipe, folder, ranks, held)
        if ranks.is_main:
            held.callback(as_found)
        setup = set_up(recipe, ranks)
        measured = steps_to_measure(setup.total_steps)
        steps = Steps(recipe, setup.engine, setup.stages, watch, traced=True)
        with tracing(folder.trace, ranks.rank, measured, say if ranks.is_main else lambda _: None) as stepped:
            for batch, loaded in steps.batches(Position()):
                steps.take(batch, loaded)
                if stepped():
                    break
