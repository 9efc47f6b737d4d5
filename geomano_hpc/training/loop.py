"""The training of one run, from its recipe to its result. Started again, it goes on from its newest checkpoint."""

import contextlib
import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from geomano_hpc.config import Recipe
from geomano_hpc.data import Batch, GlobalBatch
from geomano_hpc.errors import DivergedError, GeomanoError, InterruptedRunError, PreemptedError
from geomano_hpc.training.at_rest import at_rest
from geomano_hpc.training.callbacks import Callback, Callbacks, Progress, check_callbacks
from geomano_hpc.training.distributed.together import ranks_together
from geomano_hpc.training.distributed.watch import RankWatch
from geomano_hpc.training.distributed.world import fail_everywhere
from geomano_hpc.training.evaluate import Evaluation, evaluate, evaluating, predict_first
from geomano_hpc.training.records.checkpoint import Checkpoint, Position, load_newest, save_checkpoint
from geomano_hpc.training.records.journal import Journal
from geomano_hpc.training.records.metrics import EpochSums, line_of
from geomano_hpc.training.records.run_folder import RunFolder
from geomano_hpc.training.records.weights import load_alone, save_weights
from geomano_hpc.training.result import result_of
from geomano_hpc.training.setup import Setup, set_up
from geomano_hpc.training.signals import StopRequest, stop_requests
from geomano_hpc.training.start import prepare, record_start
from geomano_hpc.training.steps import Steps, Taken
from geomano_hpc.training.tasks import Network, Task

logger = logging.getLogger(__name__)

_FIGURE_SAMPLES = 3
_MOST_OVERFLOWS = 20  # in a row: each halves the loss scale of float16, which starts at 2^16


def train(recipe: Recipe, folder: RunFolder, callbacks: Sequence[Callback] = ()) -> dict[str, Any]:
    """Train to the end and return the result; a finished run returns its result at once.

    A signal that asks to stop raises PreemptedError on every rank, after everything is on disk. Callbacks are called on
    rank 0.
    """
    check_callbacks(callbacks)
    with contextlib.ExitStack() as held, ranks_together(recipe.training.rank_timeout) as (ranks, watch):
        finished = prepare(recipe, folder, ranks, held)
        if finished is not None:
            logger.info("%s is finished already", folder.path)
            return finished
        with stop_requests() as stop:
            setup = set_up(recipe, ranks)
            if ranks.is_main:
                record_start(setup, folder)
            done = load_newest(folder.checkpoints, setup.engine, folder.best_weights_file)
            return Training(setup, folder, watch, stop, done, callbacks).run()


class Training:
    """Takes the steps of a run from where it stands, judges, records and saves it. It builds nothing."""

    def __init__(
        self,
        setup: Setup,
        folder: RunFolder,
        watch: RankWatch,
        stop: StopRequest,
        done: Checkpoint,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.setup, self.recipe, self.ranks, self.engine = setup, setup.recipe, setup.ranks, setup.engine
        self.config, self.total_steps = setup.recipe.training, setup.total_steps
        self.folder, self.watch, self.stop, self.done = folder, watch, stop, done
        self.steps = Steps(setup.recipe, setup.engine, setup.stages, watch, self._wishes)
        self.sums = EpochSums(**done.sums)
        self.overflows = 0
        self.saved_position, self.saved_at = done.position, time.monotonic()
        self.callbacks = Callbacks(callbacks, called=setup.ranks.is_main)
        # As the callbacks saw it last.
        self.progress = Progress(folder.path, setup.engine.model, 0, self.config.epochs, 0, setup.total_steps)

    @property
    def position(self) -> Position:
        return self.done.position

    def run(self) -> dict[str, Any]:
        logger.info(
            f"training {self.recipe.name}: {self.setup.parameters} parameters, {self.steps.samples} samples, "
            f"steps {self.position.step + 1} to {self.total_steps}, epochs {self.position.epoch + 1} to "
            f"{self.config.epochs} on {self.engine.device}"
        )
        with (
            contextlib.closing(self.steps.batches(self.position)) as batches,
            Journal(self.recipe, self.folder, self.position, self.total_steps, self.ranks.is_main) as self.journal,
        ):
            while self.position.epoch < self.config.epochs:
                self._epoch(batches)
            self._fail_if_a_callback_did()  # in the last epoch, after the last step that the ranks agreed on
            self.watch.unhurried()
            weights = self.engine.weights()
            tested = self._test_of_best() if self.setup.chooses_best else None
            self.journal.finished()
        return self._finish(weights, tested) if self.ranks.is_main else {}

    def _epoch(self, batches: Iterator[tuple[GlobalBatch, Iterator[Batch]]]) -> None:
        """The rest of the epoch at work, its evaluation and its line."""
        end = (self.position.epoch + 1) * self.steps.per_epoch
        due = False
        while self.position.step < end:
            taken = self.steps.take(*next(batches))
            self._count(taken)
            self.journal.step(self.position, taken.loss, taken.sums)
            self._call_back("on_step", loss=taken.loss)
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
        untouched = not math.isfinite(norm)  # the optimiser has left the weights alone
        if untouched and self.done.skipped < self.config.skip_nonfinite:
            self.done = replace(self.done, skipped=self.done.skipped + 1)
            left = self.config.skip_nonfinite - self.done.skipped
            logger.warning("%s %s: left out, as training.skip_nonfinite says; %d more may be", what, where, left)
            return
        kept = "the newest checkpoint is from before this step"
        if untouched:
            self._save()
            kept = f"the state before this step is the newest of {self.folder.checkpoints}"
        advice = "look at these samples, or start a new run with a lower training.lr or with training.skip_nonfinite"
        split, samples = self.setup.task.split, taken.batch.samples
        zero = at_rest(split.signature, split.batch(samples).target_BHWC, samples.tolist())
        if zero and self.recipe.loss.name.startswith("relative"):
            advice = f"{zero}, which has no relative error: leave these out of the data, or train with loss.name=mse"
        fail_everywhere(DivergedError(f"{self.folder.path}: {what} {where}; {kept}; {advice}"), self.ranks)

    def _end_of_epoch(self, due: bool) -> None:
        config, epoch = self.config, self.position.epoch + 1
        last = epoch == config.epochs
        started = time.monotonic()
        judged = self._evaluate() if last or epoch % config.evaluate_every == 0 else None
        line = {
            "epoch": epoch,
            "step": self.position.step,
            **({} if self.setup.stages.is_one else {"points": max(self.setup.stages.at(epoch).grid)}),
            **line_of(self.setup.judged_split, judged, time.monotonic() - started),
            **self.sums.line(),
            "skipped_batches": self.done.skipped,
        }
        best = math.inf if self.done.best is None else self.done.best
        if self.setup.chooses_best and judged is not None and judged.rel_l2 < best:  # never one that is not a number
            self.done = replace(self.done, best=judged.rel_l2)
            weights = self.engine.weights()
            if self.ranks.is_main:
                save_weights(self.folder.best_weights_file, weights, self.setup.task.split, self.recipe)
        if last or (config.figures_every and epoch % config.figures_every == 0):
            with self._judging():
                self._show_samples(self.engine.evaluation_network, self.setup.judge)
        self.journal.epoch(line)
        self.done = replace(self.done, position=Position(epoch, self.position.step))
        self.sums = EpochSums()
        self._call_back("on_epoch", metrics=dict(line))
        if due or last or epoch % config.checkpoint_every == 0:
            self._save()

    @contextlib.contextmanager
    def _judging(self) -> Iterator[None]:
        """In evaluation mode, on the grid of the data: that of the last stage."""
        if not self.setup.stages.is_one:
            self.setup.stages.place(self.engine.model, self.setup.task)
        with evaluating(self.engine.model):
            yield

    def _evaluate(self) -> Evaluation:
        with self._judging():
            return self._judged(self.engine.evaluation_network, self.setup.judge)

    def _judged(self, network: Network, task: Task) -> Evaluation:
        return evaluate(network, task, self.config.batch_size, self.engine.device, self.ranks, self._pause)

    def _test_of_best(self) -> Evaluation:
        """The test split, once, with the weights that the validation split chose; with the last ones where it could
        choose none, since no error was a number."""
        if self.done.best is None:
            logger.warning("no evaluation on the validation split gave a number: the last weights are tested")
        else:
            self.engine.replace_weights(load_alone(self.folder.best_weights_file).weights)
        with self._judging():
            if self.done.best is not None:
                self._show_samples(self.engine.evaluation_network, self.setup.test_task)
            return self._judged(self.engine.evaluation_network, self.setup.test_task)

    def _pause(self) -> None:
        """Between two batches of an evaluation, which may take longer than the notice that a preemption gives."""
        self.steps.mark()
        agreed = self.steps.agree()
        if agreed.stop:
            self._leave()
        if agreed.save:
            self._save()

    def _wishes(self) -> tuple[bool, bool]:
        """Whether this rank was asked to stop or has to, and whether rank 0's clock says to save."""
        minutes = self.config.checkpoint_minutes
        late = minutes is not None and time.monotonic() - self.saved_at > 60 * minutes
        stop = self.stop.received is not None or self.callbacks.failure is not None
        return stop, self.ranks.is_main and late

    def _call_back(self, hook: str, **news: Any) -> None:
        if self.callbacks:
            self.progress = replace(self.progress, epoch=self.position.epoch, step=self.position.step, **news)
            self.callbacks.call(hook, self.progress)

    def _fail_if_a_callback_did(self) -> None:
        """Every rank calls it, after the state is saved. Rank 0 alone knows."""
        failure = self.callbacks.failure
        failed = torch.tensor([failure is not None], dtype=torch.float64, device=self.engine.device)
        if self.engine.sum_over_ranks(failed).item():
            fail_everywhere(failure or GeomanoError("a callback failed on rank 0"), self.ranks)

    def _show_samples(self, network: Network, task: Task) -> None:
        """Predict a few samples: kept for the report, and drawn in TensorBoard if the recipe wants figures."""
        shown = predict_first(network, task, _FIGURE_SAMPLES, self.engine.device)
        split = "test" if task is self.setup.test_task else self.setup.judged_split
        shown = replace(shown, split=split)
        if self.ranks.is_main:
            shown.write(self.folder.predictions_file)
        if self.config.figures_every:
            periodic = set(task.signature.boundary) == {"periodic"}
            self.journal.figures(shown, self.engine.weights(), self.position.step, periodic)

    def _save(self) -> None:
        """Every rank calls it. What is saved already is not written again."""
        self.steps.mark()
        if self.position == self.saved_position != Position():
            return
        self.journal.flush()  # a checkpoint must not outlive the curves that lead to it
        checkpoint = replace(self.done, sums=asdict(self.sums))
        best = self.folder.best_weights_file if self.done.best is not None else None
        saved = save_checkpoint(self.folder.checkpoints, self.engine, checkpoint, self.config.keep_checkpoints, best)
        self.saved_position, self.saved_at = self.position, time.monotonic()
        self._call_back("on_checkpoint", checkpoint=saved)

    def _leave(self) -> None:
        """All ranks have agreed to stop: save, and ask to be started again."""
        self._save()
        self._fail_if_a_callback_did()
        by_user = torch.tensor([self.stop.by_user], dtype=torch.float64, device=self.engine.device)
        name = "a signal on another rank" if self.stop.received is None else self.stop.received.name
        kind = InterruptedRunError if self.engine.sum_over_ranks(by_user).item() else PreemptedError
        raise kind(
            f"{self.folder.path}: stopped by {'Ctrl-C' if kind is InterruptedRunError else name} after step "
            f"{self.position.step} of {self.total_steps}; everything is saved, and the same command goes on from here",
            self.ranks.rank,
        )

    def _finish(self, weights: dict[str, torch.Tensor], tested: Evaluation | None) -> dict[str, Any]:
        save_weights(self.folder.weights_file, weights, self.setup.task.split, self.recipe)
        result = result_of(self.setup, self.done, self.folder.metrics(), tested)
        self.folder.write_result(result)
        chosen = " with the weights that the validation split chose" if result["weights"] == "best" else ""
        logger.info("finished: rel-L2 %.5f on %d test samples%s", result["rel_l2"], result["test_samples"], chosen)
        self._call_back("on_end", result=dict(result))
        if self.callbacks.failure is not None:
            raise self.callbacks.failure
        return result
