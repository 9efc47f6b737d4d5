"""Short names of the parts that a recipe chooses by name, and where each part is.

This is the one place to name another one. A part of the user's own needs no line here: `package.module:name` does.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

from geomano_hpc.config.by_name import is_reference
from geomano_hpc.config.explain import closest

# Called with (parameters, lr=, weight_decay=, **training.optimizer_options).
OPTIMIZERS = {
    "adamw": "torch.optim:AdamW",
    "adam": "torch.optim:Adam",
    "sgd": "torch.optim:SGD",
    "lion": "geomano_hpc.training.optimizers:Lion",
    "nadam": "torch.optim:NAdam",
    "radam": "torch.optim:RAdam",
    "rmsprop": "torch.optim:RMSprop",
    "adagrad": "torch.optim:Adagrad",
    "adafactor": "torch.optim:Adafactor",
}
# Called with (optimizer, total_steps, **training.scheduler_options), and with warmup= where the recipe sets it.
SCHEDULERS = {
    "onecycle": "geomano_hpc.training.schedules:one_cycle",
    "cosine": "geomano_hpc.training.schedules:cosine",
    "constant": "geomano_hpc.training.schedules:constant",
}
# Called with (prediction, target, **loss.options), both [B, H, W, C] in physical units; one loss per sample comes back.
LOSSES = {
    "relative_l2": "geomano_hpc.training.losses:relative_l2",
    "relative_l1": "geomano_hpc.training.losses:relative_l1",
    "relative_h1": "geomano_hpc.training.losses:relative_h1",
    "mse": "geomano_hpc.training.losses:mse",
}
# Made on rank 0 with (folder, recipe, finished_steps); see training/loggers/logger.py.
LOGGERS = {
    "tensorboard": "geomano_hpc.training.loggers.tensorboard:TensorBoard",
    "wandb": "geomano_hpc.training.loggers.wandb:WandB",
    "mlflow": "geomano_hpc.training.loggers.mlflow:MLflow",
}


def place_of(chosen: str, choices: Mapping[str, str]) -> str:
    """`package.module:name` of what a recipe chose."""
    return choices.get(chosen, chosen)


def _one_of(choices: Mapping[str, str]) -> AfterValidator:
    def check(chosen: str) -> str:
        if chosen not in choices and not is_reference(chosen):
            raise ValueError(
                f"is not known{closest(chosen, choices)}; choose one of {', '.join(choices)}, or package.module:name"
            )
        return chosen

    return AfterValidator(check)


_WORDS = {"true": True, "false": False, "null": None}


def _loggers(chosen: list[str]) -> list[str]:
    for name in chosen:
        if name not in LOGGERS:
            raise ValueError(f"{name!r} is not known{closest(name, LOGGERS)}; choose of {', '.join(LOGGERS)}")
    if len(set(chosen)) < len(chosen):
        raise ValueError("a name stands twice")
    return chosen


def as_numbers(options: Any) -> Any:
    """`--set training.optimizer_options.momentum=0.9` comes as text, and these keys have no type to turn it into."""
    if isinstance(options, dict):
        return {key: as_numbers(value) for key, value in options.items()}
    if not isinstance(options, str):
        return options
    if options in _WORDS:
        return _WORDS[options]
    for number in (int, float):
        try:
            return number(options)
        except ValueError:
            pass
    return options


OptimizerName = Annotated[str, _one_of(OPTIMIZERS)]
SchedulerName = Annotated[str, _one_of(SCHEDULERS)]
LossName = Annotated[str, _one_of(LOSSES)]
LoggerNames = Annotated[list[str], AfterValidator(_loggers)]
Options = Annotated[dict[str, Any], AfterValidator(as_numbers)]
