"""What result.json says of a finished run."""

from typing import Any

from geomano_hpc.training.records.checkpoint import Checkpoint
from geomano_hpc.training.setup import Setup


def result_of(setup: Setup, done: Checkpoint, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """`lines` are those of metrics.jsonl, one for each epoch."""
    result = {
        "recipe": setup.recipe.name,
        "problem": setup.store.card.problem,
        "seed": setup.recipe.training.seed,
        "rel_l2": lines[-1]["test_rel_l2"],
        "best_rel_l2": done.best,
        "epochs": len(lines),
        "parameters": setup.parameters,
        "train_seconds": sum(line["seconds"] for line in lines),
        "test_samples": len(setup.test_task.split),
        "skipped_batches": done.skipped,
    }
    if "test_rel_l2_by_frame" in lines[-1]:
        result["rel_l2_by_frame"] = lines[-1]["test_rel_l2_by_frame"]
    return result
