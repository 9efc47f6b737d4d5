"""The training of one run, from its recipe to result.json. Started again, it goes on from its newest checkpoint."""

import contextlib
import itertools
import json
import logging
import math
import os
import time
from collections.abc import Generator, Iterator
from typing import Any

import torch

from geomano_hpc.atomic import write_json
from geomano_hpc.config import GeomanoConfig, Recipe
from geomano_hpc.data import Batch, DataWait, GlobalBatch, ensure_store, load_splits, share_of_rank, training_batches
from geomano_hpc.data_prep.store import open_store
from geomano_hpc.errors import DataError, GeomanoError
from geomano_hpc.kernels import BackendStatus, ready_backend
from geomano_hpc.models import build_model, count_parameters
from geomano_hpc.progress import Advance, progress
from geomano_hpc.training.checkpoint import Position, load_newest, save_checkpoint
from geomano_hpc.training.engine import Engine, start_engine
from geomano_hpc.training.environment import describe_environment
from geomano_hpc.training.evaluate import mean_error
from geomano_hpc.training.metrics import MetricsWriter
from geomano_hpc.training.ranks import Ranks, fail_everywhere, join, read_ranks, tell_all
from geomano_hpc.training.run_folder import RunFolder
from geomano_hpc.training.tasks import Task
from geomano_hpc.training.weights import save_weights

logger = logging.getLogger(__name__)


def train(recipe: Recipe, folder: RunFolder) -> dict[str, Any]:
    """Train to the end and return the result; a finished run returns its result at once."""
    ranks = read_ranks(os.environ)
    join(ranks)
    if not ranks.is_main:
        logging.getLogger("geomano_hpc").setLevel(logging.WARNING)
    with contextlib.ExitStack() as held:
        finished = _prepare(recipe, folder, ranks, held)
        if finished is None:
            return Training(recipe, folder, ranks).run()
    logger.info("%s is finished already", folder.path)
    return finished


def _prepare(recipe: Recipe, folder: RunFolder, ranks: Ranks, held: contextlib.ExitStack) -> dict[str, Any] | None:
    """Rank 0 holds the folder, starts its log, keeps the recipe and makes missing data; the others wait for it.

    Returns the result of a run that is finished already. What fails on rank 0 is raised on every rank.
    """
    failure: Exception | None = None
    finished = None
    if ranks.is_main:
        try:
            held.enter_context(folder.held())
            folder.write_recipe(recipe)
            held.enter_context(_log_file(folder))
            finished = folder.result()
            if finished is None:
                _scan_backend(recipe)
                ensure_store(recipe.data)
        except Exception as error:
            failure = error
    failure, finished = tell_all((failure, finished), ranks)
    if failure is not None:
        fail_everywhere(failure, ranks)
    return finished


@contextlib.contextmanager
def _log_file(folder: RunFolder) -> Iterator[None]:
    """What the package logs goes to logs/train.log too, and so does the error that ends the run."""
    folder.logs.mkdir(exist_ok=True)
    handler = logging.FileHandler(folder.logs / "train.log", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    package_logger = logging.getLogger("geomano_hpc")
    package_logger.addHandler(handler)
    package_logger.setLevel(logging.INFO)
    try:
        yield
    except Exception as error:
        line = logger.makeRecord(logger.name, logging.ERROR, __file__, 0, f"{type(error).__name__}: {error}", (), None)
        handler.handle(line)  # to the file only: the caller reports the error
        raise
    finally:
        package_logger.removeHandler(handler)
        handler.close()


class Training:
    def __init__(self, recipe: Recipe, folder: RunFolder, ranks: Ranks) -> None:
        self.recipe, self.folder, self.ranks = recipe, folder, ranks
        config = recipe.training
        store = open_store(recipe.data.store)
        self.problem = store.card.problem
        loaded = load_splits(store, recipe.data)
        train_split, test_split = loaded.splits["train"], loaded.splits["test"]
        self.task, self.test_task = (
            Task(split, recipe.loss.gradient_weight, recipe.compute.precision) for split in (train_split, test_split)
        )

        torch.manual_seed(config.seed)
        channels = (train_split.in_channels, train_split.out_channels)
        model = build_model(recipe.model, *channels, train_split.grid, recipe.compute)
        self.parameters = count_parameters(model)
        steps_per_epoch = -(-len(train_split) // config.batch_size)
        self.engine: Engine = start_engine(model, config, config.epochs * steps_per_epoch, ranks)
        backend = _scan_backend(recipe)
        if ranks.is_main:
            environment = describe_environment(ranks, backend, store.content_hash())
            self._record_start({**environment, "data_loading": loaded.record})
        self.position = load_newest(folder.checkpoints, self.engine)
        self.steps_per_epoch = steps_per_epoch
        self.data_wait = DataWait()

    def run(self) -> dict[str, Any]:
        config = self.recipe.training
        metrics = MetricsWriter(self.folder, self.position.epoch) if self.ranks.is_main else None
        left = (config.epochs - self.position.epoch) * self.steps_per_epoch
        logger.info(
            f"training {self.recipe.name}: {self.parameters} parameters, {len(self.task.split)} samples, "
            f"epochs {self.position.epoch + 1} to {config.epochs} on {self.engine.device}"
        )
        with (
            contextlib.closing(self._batches(self.position.epoch + 1)) as batches,
            progress(self.recipe.name, left, shown=self.ranks.is_main) as advance,
        ):
            for epoch in range(self.position.epoch + 1, config.epochs + 1):
                line = self._epoch(epoch, batches, advance)
                if metrics is not None:
                    metrics.write(line)
                    logger.info("epoch %d/%d %s", epoch, config.epochs, _words(line))
                if epoch % config.checkpoint_every == 0 or epoch == config.epochs:
                    save_checkpoint(self.folder.checkpoints, self.engine, self.position, config.keep_checkpoints)
        if metrics is not None:
            metrics.close()
        return self._finish() if self.ranks.is_main else {}

    def _batches(self, first_epoch: int, first_step: int = 0) -> Generator[tuple[GlobalBatch, Batch]]:
        """Every step that is left, with this rank's samples of it; the samples of the next steps are read meanwhile."""
        config = self.recipe.training
        plan = (len(self.task.split), config.batch_size, config.seed, config.epochs, first_epoch, first_step)
        schedule = (self._share(step.samples) for step in training_batches(*plan))
        yield from zip(training_batches(*plan), self.task.split.batches(schedule, self.data_wait), strict=True)

    def _share(self, batch: torch.Tensor) -> torch.Tensor:
        """A last batch may have fewer samples than ranks: a rank without one computes the first, and counts it as 0."""
        mine = share_of_rank(batch, self.ranks.rank, self.ranks.world_size)
        return mine if len(mine) else batch[:1]

    def _epoch(self, epoch: int, batches: Iterator[tuple[GlobalBatch, Batch]], advance: Advance) -> dict[str, Any]:
        config = self.recipe.training
        started, waited = time.perf_counter(), self.data_wait.seconds
        total = 0.0
        for step, fields in itertools.islice(batches, self.steps_per_epoch):
            assert step.epoch == epoch
            batch = step.samples
            loss = self._batch_loss(batch, fields)
            batch_loss = self.engine.sum_over_ranks(loss.detach().clone()).item()
            if not math.isfinite(batch_loss):
                reason = f"the loss is {batch_loss} in epoch {epoch}, samples {batch.tolist()}"
                error = GeomanoError(f"{self.folder.path}: {reason}; look at these samples, or lower training.lr")
                fail_everywhere(error, self.ranks)
            self.engine.step(loss)
            total += batch_loss
            advance(f"epoch {epoch}/{config.epochs} loss {batch_loss / len(batch):.4f}")
        seconds, waited = time.perf_counter() - started, self.data_wait.seconds - waited
        self.position = Position(epoch, epoch * self.steps_per_epoch)
        samples = len(self.task.split)
        evaluate = epoch % config.evaluate_every == 0 or epoch == config.epochs
        return {
            "epoch": epoch,
            "step": self.position.step,
            "train_loss": total / samples,
            "test_rel_l2": self._test_error() if evaluate else None,
            "lr": self.engine.scheduler.get_last_lr()[0],
            "seconds": seconds,
            "samples_per_second": samples / seconds,
            "data_wait_share": waited / seconds,
        }

    def _batch_loss(self, batch: torch.Tensor, fields: Batch) -> torch.Tensor:
        loss = self.task.training_loss(self.engine.deepspeed, fields, self.engine.device)
        # A rank without a sample in the batch takes part in the step without a share in its loss.
        return loss if self.ranks.rank < len(batch) else 0.0 * loss

    def _test_error(self) -> float:
        batch_size = self.recipe.training.batch_size
        return mean_error(self.engine.model, self.test_task, batch_size, self.engine.device, self.ranks)

    def _record_start(self, environment: dict[str, Any]) -> None:
        """environment.json lists every start of the run. The data must not change between them."""
        file = self.folder.environment_file
        starts = json.loads(file.read_text(encoding="utf-8"))["starts"] if file.is_file() else []
        if starts and starts[-1]["data_hash"] != environment["data_hash"]:
            raise DataError(
                f"{self.recipe.data.store}: the data changed since {self.folder.path} was started; "
                "train in a new run folder, or bring the old data back"
            )
        write_json(file, {"starts": [*starts, environment]})

    def _finish(self) -> dict[str, Any]:
        save_weights(self.folder.weights_file, self.engine.model, self.task.split)
        lines = self.folder.metrics()
        result = {
            "recipe": self.recipe.name,
            "problem": self.problem,
            "seed": self.recipe.training.seed,
            "rel_l2": lines[-1]["test_rel_l2"],
            "best_rel_l2": min(line["test_rel_l2"] for line in lines if line["test_rel_l2"] is not None),
            "epochs": len(lines),
            "parameters": self.parameters,
            "train_seconds": sum(line["seconds"] for line in lines),
            "test_samples": len(self.test_task.split),
        }
        self.folder.write_result(result)
        logger.info("finished: rel-L2 %.5f on %d test samples", result["rel_l2"], result["test_samples"])
        return result


def _scan_backend(recipe: Recipe) -> BackendStatus | None:
    """The backend of the scan, compiled and loaded; None for a model without a scan."""
    return ready_backend(recipe.model.scan_backend) if isinstance(recipe.model, GeomanoConfig) else None


def _words(line: dict[str, Any]) -> str:
    test = "" if line["test_rel_l2"] is None else f" test rel-L2 {line['test_rel_l2']:.5f}"
    speed = f"{line['samples_per_second']:.1f} samples/s, {line['data_wait_share']:.1%} waiting for data"
    return f"loss {line['train_loss']:.5f}{test} lr {line['lr']:.2e} {speed}"
