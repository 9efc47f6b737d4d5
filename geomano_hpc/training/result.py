"""What result.json says of a finished run."""

from typing import Any

from geomano_hpc.training.evaluate import Evaluation
from geomano_hpc.training.records.checkpoint import Checkpoint
from geomano_hpc.training.setup import Setup


def result_of(setup: Setup, done: Checkpoint, lines: list[dict[str, Any]], tested: Evaluation | None) -> dict[str, Any]:
    """`lines` are those of metrics.jsonl, one for each epoch; `tested` is the one evaluation on the test split where
    epochs were judged on the validation split."""
    last = lines[-1]
    if tested is None:
        errors = {key: last.get(f"test_{key}") for key in ("rel_l2", "rel_l2_by_frame", "rel_l2_by_field")}
    else:
        by = {"rel_l2_by_frame": tested.rel_l2_by_frame, "rel_l2_by_field": tested.rel_l2_by_field}
        errors = {"rel_l2": tested.rel_l2, **by}
    chosen = {}
    if setup.chooses_best and done.best is not None:
        best = min((line for line in lines if line.get("validation_rel_l2") == done.best), key=lambda one: one["epoch"])
        chosen = {"validation_rel_l2": done.best, "best_epoch": best["epoch"]}
    return {
        "recipe": setup.recipe.name,
        "problem": setup.store.card.problem,
        "seed": setup.recipe.training.seed,
        "rel_l2": errors.pop("rel_l2"),
        "split": "test",
        "weights": "best" if chosen else "last",
        **chosen,
        "epochs": len(lines),
        "parameters": setup.parameters,
        "train_seconds": sum(line["seconds"] for line in lines),
        "test_samples": len(setup.test_task.split),
        "skipped_batches": done.skipped,
        **{key: value for key, value in errors.items() if value is not None},
    }
