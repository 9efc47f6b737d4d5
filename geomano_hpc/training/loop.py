"""The training of one run, from its recipe to result.json. Started again, it goes on from its newest checkpoint."""

import contextlib
import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

import torch

from geomano_hpc.config import Recipe
from geomano_hpc.data import Batch, GlobalBatch, load_splits
from geomano_hpc.data_prep.store import open_store
from geomano_hpc.errors import GeomanoError, PreemptedError
from geomano_hpc.models import build_model, count_parameters
from geomano_hpc.training.distributed.ranks import Ranks, read_ranks
from geomano_hpc.training.distributed.watch import RankWatch, watching
from geomano_hpc.training.distributed.world import fail_everywhere, join, wait_for_all
from geomano_hpc.training.engines.engine import start_engine
from geomano_hpc.training.engines.heap import keep_freed_memory
from geomano_hpc.training.evaluate import Evaluation, evaluate
from geomano_hpc.training.records.checkpoint import Checkpoint, Position, load_newest, save_checkpoint
from geomano_hpc.training.records.environment import describe_environment
from geomano_hpc.training.records.journal import Journal
from geomano_hpc.training.records.metrics import EpochSums
from geomano_hpc.training.records.run_folder import RunFolder
from geomano_hpc.training.records.weights import save_weights
from geomano_hpc.training.signals import StopRequest, stop_requests
from geomano_hpc.training.start import prepare, record_start, scan_backend
from geomano_hpc.training.steps import Steps, Taken
from geomano_hpc.training.tasks import Task
from geomano_hpc.training.trace import profiling

logger = logging.getLogger(__name__)

_FIGURE_SAMPLES = 3
_MOST_OVERFLOWS = 20  # in a row: each halves the loss scale of float16, which starts at 2^16


def train(recipe: Recipe, folder: RunFolder) -> dict[str, Any]:
    """Train to the end and return the result; a finished run returns its result at once.

    A signal that asks to stop raises PreemptedError on every rank, after everything is on disk.
    """
    with contextlib.ExitStack() as held, _ranks_together(recipe) as (ranks, watch):
        finished = prepare(recipe, folder, ranks, held)
        if finished is not None:
            logger.info("%s is finished already", folder.path)
            return finished
        with stop_requests() as stop:
            return Training(recipe, folder, ranks, watch, stop).run()


def profile(recipe: Recipe, folder: RunFolder, say: Callable[[str], None]) -> None:
    """Some steps under torch's profiler. Nothing of the training is kept, and none of its checkpoints is read."""
    with contextlib.ExitStack() as held, _ranks_together(recipe) as (ranks, watch):
        prepare(recipe, folder, ranks, held)
        steps = Training(recipe, folder, ranks, watch, StopRequest(), profiled=True).steps
        with profiling(folder.profile, ranks.rank, say if ranks.is_main else lambda _: None) as stepped:
            for batch, loaded in steps.batches(Position()):
                steps.take(batch, loaded)
                if stepped():
                    break


@contextlib.contextmanager
def _ranks_together(recipe: Recipe) -> Iterator[tuple[Ranks, RankWatch]]:
    ranks = read_ranks(os.environ)
    join(ranks)
    if not ranks.is_main:
        logging.getLogger("geomano_hpc").setLevel(logging.WARNING)
    with watching(ranks, recipe.training.rank_timeout) as watch:
        yield ranks, watch
        watch.unhurried()
        wait_for_all(ranks)  # rank 0 writes the result; the store of the ranks may live in its process


class Training:
    def __init__(
        self,
        recipe: Recipe,
        folder: RunFolder,
        ranks: Ranks,
        watch: RankWatch,
        stop: StopRequest,
        profiled: bool = False,
    ) -> None:
        self.recipe, self.config, self.folder, self.ranks = recipe, recipe.training, folder, ranks
        self.watch, self.stop = watch, stop
        store = open_store(recipe.data.store)
        self.problem = store.card.problem
        loaded = load_splits(store, recipe.data)
        train_split, test_split = loaded.splits["train"], loaded.splits["test"]
        task, self.test_task = (
            Task(split, recipe.loss.gradient_weight, recipe.compute.precision) for split in (train_split, test_split)
        )
        if not torch.cuda.is_available():
            keep_freed_memory()
        torch.manual_seed(self.config.seed)
        channels = (train_split.in_channels, train_split.out_channels)
        model = build_model(recipe.model, *channels, train_split.grid, recipe.compute)
        self.parameters = count_parameters(model)
        self.total_steps = self.config.epochs * -(-len(train_split) // self.config.batch_size)
        self.engine = start_engine(model, self.config, self.total_steps, ranks, recipe.compute.precision)
        self.steps = Steps(recipe, self.engine, task, watch, self._wishes, profiled)
        backend = scan_backend(recipe)
        if ranks.is_main and not profiled:
            environment = describe_environment(ranks, backend, store.content_hash())
            record_start(recipe, folder, {**environment, "data_loading": loaded.record})
        self.done = Checkpoint() if profiled else load_newest(folder.checkpoints, self.engine)
        self.sums = EpochSums(**self.done.sums)
        self.overflows = 0
        self.saved_position, self.saved_at = self.done.position, time.monotonic()

    @property
    def position(self) -> Position:
        return self.done.position

    def run(self) -> dict[str, Any]:
        logger.info(
            f"training {self.recipe.name}: {self.parameters} parameters, {len(self.steps.task.split)} samples, "
            f"steps {self.position.step + 1} to {self.total_steps}, epochs {self.position.epoch + 1} to "
            f"{self.config.epochs} on {self.engine.device}"
        )
        with (
            contextlib.closing(self.steps.batches(self.position)) as batches,
            Journal(self.recipe, self.folder, self.position, self.total_steps, self.ranks.is_main) as self.journal,
        ):
            while self.position.epoch < self.config.epochs:
                self._epoch(batches)
            self.journal.finished()
        self.watch.unhurried()
        weights = self.engine.weights()
        return self._finish(weights) if self.ranks.is_main else {}

    def _epoch(self, batches: Iterator[tuple[GlobalBatch, Iterator[Batch]]]) -> None:
        """The rest of the epoch at work, its evaluation and its line."""
        end = (self.position.epoch + 1) * self.steps.per_epoch
        due = False
        while self.position.step < end:
            taken = self.steps.take(*next(batches))
            self._count(taken)
            self.journal.step(self.position, taken.loss, taken.sums)
            if taken.stop:
                self._leave()
            every = self.config.checkpoint_steps
            due = taken.save or (every is not None and self.position.step % every == 0)
            if due and self.position.step < end:
                self._save()
        self._end_of_epoch(due)

    def _count(self, taken: Taken) -> None:
        assert taken.batch.epoch == self.position.epoch + 1
        if taken.is_finite:
            self.sums.add(taken.sums)
            self.overflows = 0
        else:
            self._not_finite(taken)
        self.done = replace(self.done, position=replace(self.position, step=self.position.step + 1))

    def _not_finite(self, taken: Taken) -> None:
        """Leave the batch out if the recipe allows it; else save the state before it and stop."""
        loss, norm = taken.sums.loss, taken.sums.gradient_norm
        if self.recipe.compute.precision == "float16" and math.isfinite(loss):
            self.overflows += 1
            if self.overflows <= _MOST_OVERFLOWS:
                return  # the scale of the loss was too large for float16: it is lowered, and nothing is wrong
        what = f"the loss is {loss} and the norm of its gradient {norm}"
        where = f"in epoch {taken.batch.epoch}, step {self.position.step + 1}, samples {taken.batch.samples.tolist()}"
        if self.done.skipped < self.config.skip_nonfinite:
            self.done = replace(self.done, skipped=self.done.skipped + 1)
            left = self.config.skip_nonfinite - self.done.skipped
            logger.warning("%s %s: left out, as training.skip_nonfinite says; %d more may be", what, where, left)
            return
        kept = "the newest checkpoint is from before this step"
        if not math.isfinite(norm):  # the optimiser has not touched the weights
            self._save()
            kept = f"the state before this step is the newest of {self.folder.checkpoints}"
        advice = "look at these samples, or start a new run with a lower training.lr or with training.skip_nonfinite"
        fail_everywhere(GeomanoError(f"{self.folder.path}: {what} {where}; {kept}; {advice}"), self.ranks)

    def _end_of_epoch(self, due: bool) -> None:
        config, epoch = self.config, self.position.epoch + 1
        last = epoch == config.epochs
        started = time.monotonic()
        judged = self._evaluate() if last or epoch % config.evaluate_every == 0 else None
        line = {
            "epoch": epoch,
            "step": self.position.step,
            "test_rel_l2": None if judged is None else judged.rel_l2,
            "test_seconds": None if judged is None else time.monotonic() - started,
            **self.sums.line(),
            "skipped_batches": self.done.skipped,
        }
        if judged is not None and judged.rel_l2_by_frame is not None:
            line["test_rel_l2_by_frame"] = judged.rel_l2_by_frame
        best = math.inf if self.done.best is None else self.done.best
        if judged is not None and judged.rel_l2 < best:  # never one that is not a number
            self.done = replace(self.done, best=judged.rel_l2)
            weights = self.engine.weights()
            if self.ranks.is_main:
                save_weights(self.folder.best_weights_file, weights, self.test_task.split)
        if last or epoch % config.figures_every == 0:
            self._figures()
        self.journal.epoch(line)
        self.done = replace(self.done, position=Position(epoch, self.position.step))
        self.sums = EpochSums()
        if due or last or epoch % config.checkpoint_every == 0:
            self._save()

    def _evaluate(self) -> Evaluation:
        network, device = self.engine.evaluation_network, self.engine.device
        self.engine.model.eval()
        judged = evaluate(network, self.test_task, self.config.batch_size, device, self.ranks, self._pause)
        self.engine.model.train()
        return judged

    def _pause(self) -> None:
        """Between two batches of an evaluation, which may take longer than the notice that a preemption gives."""
        self.steps.mark()
        agreed = self.steps.agree()
        if agreed.stop:
            self._leave()
        if agreed.save:
            self._save()

    def _wishes(self) -> tuple[bool, bool]:
        """Whether this rank was asked to stop, and whether rank 0's clock says to save."""
        minutes = self.config.checkpoint_minutes
        late = minutes is not None and time.monotonic() - self.saved_at > 60 * minutes
        return self.stop.received is not None, self.ranks.is_main and late

    def _figures(self) -> None:
        chosen = torch.arange(min(_FIGURE_SAMPLES, len(self.test_task.split)))
        batch = self.test_task.split.batch(chosen)
        predicted = self.test_task.predict(self.engine.evaluation_network, batch, self.engine.device)
        fields = (batch.input_BHWC, batch.target_BHWC, predicted)
        self.journal.figures(self.test_task.split.task, fields, self.engine.weights(), self.position.step)

    def _save(self) -> None:
        """Every rank calls it. What is saved already is not written again."""
        self.steps.mark()
        if self.position == self.saved_position != Position():
            return
        self.journal.flush()  # a checkpoint must not outlive the curves that lead to it
        checkpoint = replace(self.done, sums=asdict(self.sums))
        save_checkpoint(self.folder.checkpoints, self.engine, checkpoint, self.config.keep_checkpoints)
        self.saved_position, self.saved_at = self.position, time.monotonic()

    def _leave(self) -> None:
        """All ranks have agreed to stop: save, and ask to be started again."""
        self._save()
        name = "a signal on another rank" if self.stop.received is None else self.stop.received.name
        raise PreemptedError(
            f"{self.folder.path}: stopped by {name} after step {self.position.step} of {self.total_steps}; everything "
            "is saved, and the same command goes on from here",
            self.ranks.rank,
        )

    def _finish(self, weights: dict[str, torch.Tensor]) -> dict[str, Any]:
        save_weights(self.folder.weights_file, weights, self.test_task.split)
        lines = self.folder.metrics()
        result = {
            "recipe": self.recipe.name,
            "problem": self.problem,
            "seed": self.recipe.training.seed,
            "rel_l2": lines[-1]["test_rel_l2"],
            "best_rel_l2": self.done.best,
            "epochs": len(lines),
            "parameters": self.parameters,
            "train_seconds": sum(line["seconds"] for line in lines),
            "test_samples": len(self.test_task.split),
            "skipped_batches": self.done.skipped,
        }
        if "test_rel_l2_by_frame" in lines[-1]:
            result["rel_l2_by_frame"] = lines[-1]["test_rel_l2_by_frame"]
        self.folder.write_result(result)
        logger.info("finished: rel-L2 %.5f on %d test samples", result["rel_l2"], result["test_samples"])
        return result
