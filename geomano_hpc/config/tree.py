"""The configuration tree. Every key that a recipe may hold is a field here; any other key is an error."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveInt, SerializeAsAny, ValidationInfo, field_validator

from geomano_hpc.config.choices import LoggerNames, LossName, OptimizerName, Options, SchedulerName
from geomano_hpc.config.models import ModelConfig, default_model, model_section
from geomano_hpc.config.strict import Strict

RECORDED = "recorded"  # in the context of a validation: the recipe of a run folder, read without its model


class GenerateConfig(Strict):
    """How to make the data where the store is missing: the FNO recipe at a size of one's own."""

    problem: Literal["darcy", "navier_stokes", "burgers"]
    train_samples: int = Field(gt=0)
    test_samples: int = Field(gt=0)
    grid: int = Field(ge=8, description="points per side that the equation is solved on")
    stride: int = Field(default=1, ge=1, description="keep every stride-th point of the solved grid")
    viscosity: float | None = Field(
        default=None, gt=0, description="Navier-Stokes (by default 1e-5) and Burgers (by default 0.01)"
    )
    seed: int = Field(default=0, ge=0)

    @property
    def kept_points(self) -> tuple[int, int]:
        """(H, W) of the samples in the store; a line is a grid of one row."""
        points = -(-self.grid // self.stride)
        return (1 if self.problem == "burgers" else points), points


class DataConfig(Strict):
    store: Path = Field(description="the prepared Zarr store; relative to the folder where geomano is started")
    train_samples: int | None = Field(default=None, gt=0, description="use only the first so many training samples")
    validation_samples: int | None = Field(
        default=None, gt=0, description="use only the first so many validation samples; of a rollout, trajectories"
    )
    test_samples: int | None = Field(default=None, gt=0, description="use only the first so many test samples")
    generate: GenerateConfig | None = None
    loading: Literal["auto", "memory", "stream"] = Field(
        default="auto", description="samples in memory, once per node, or read ahead from disk; auto: memory if it fits"
    )
    memory_budget_gib: float | None = Field(
        default=None, gt=0, description="what auto may take of a node's memory; half of what is free by default"
    )
    engine: Literal["auto", "direct", "tensorstore", "zarr"] = Field(
        default="auto", description="what reads the store; auto: the fastest that is there"
    )
    prefetch: int = Field(default=4, gt=0, description="streamed: batches that are read ahead")
    reader_threads: int | None = Field(default=None, gt=0, description="up to four by default, at most one per core")


class LossConfig(Strict):
    name: LossName = Field(
        default="relative_l2",
        description="relative_l2 (the benchmark's), relative_l1, relative_h1, mse, or package:callable",
    )
    options: Options = Field(default_factory=dict, description="keyword arguments of the loss")
    gradient_weight: float = Field(
        default=0.0, ge=0, description="weight of the relative L2 of the spatial derivatives"
    )


# Keys of DeepSpeed that the engine reckons with: set behind its back, they would change numbers and lose states.
_OF_THE_RECIPE = {
    "zero_optimization.stage": "training.zero",
    "gradient_accumulation_steps": "training.accumulate",
    "gradient_clipping": "training.clip",
    "train_batch_size": "training.batch_size",
    "train_micro_batch_size_per_gpu": "training.batch_size",
    "optimizer": "training.optimizer",
    "scheduler": "training.scheduler",
    "fp16": "compute.precision",
    "bf16": "compute.precision",
    "amp": "compute.precision",
    "torch_autocast": "compute.precision",
}


class TrainingConfig(Strict):
    epochs: int = Field(default=500, gt=0)
    resolutions: list[tuple[PositiveInt, PositiveInt]] | None = Field(
        default=None,
        min_length=1,
        description="coarse to fine: [points, epochs] of each stage, such as [[22, 15], [43, 5]]; points along the "
        "longer side, the last ones those of the store, the epochs together training.epochs",
    )
    batch_size: int = Field(default=4, gt=0, description="over all ranks")
    lr: float = Field(default=3e-4, gt=0, description="the peak of the schedule")
    optimizer: OptimizerName = Field(
        default="adamw",
        description="by name, such as adam, sgd or lion (all in config/choices.py), or package:callable",
    )
    optimizer_options: Options = Field(
        default_factory=dict, description="further keyword arguments of the optimiser, such as {momentum: 0.9}"
    )
    weight_decay: float = Field(default=1e-5, ge=0)
    scheduler: SchedulerName = Field(default="onecycle", description="onecycle, cosine, constant, or package:callable")
    scheduler_options: Options = Field(default_factory=dict, description="further keyword arguments of the scheduler")
    warmup: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="share of all steps in which lr rises to its peak; by default 0.3 of onecycle and 0 of the others",
    )
    clip: float | None = Field(default=None, gt=0, description="largest norm of the gradient")
    seed: int = Field(default=0, ge=0)
    step_frames: int = Field(default=1, gt=0, description="frames of a rollout that one call of the model predicts")
    accumulate: int = Field(
        default=1, gt=0, description="parts that a rank computes its share of a batch in, to save memory; same numbers"
    )
    engine: Literal["deepspeed", "torch"] = Field(
        default="deepspeed", description="torch: DistributedDataParallel, needs no DeepSpeed"
    )
    zero: int = Field(
        default=0,
        ge=0,
        le=3,
        description="DeepSpeed's ZeRO stage: optimiser states (1), gradients (2), parameters (3) parted over ranks",
    )
    deepspeed: Options = Field(
        default_factory=dict,
        description="further keys of DeepSpeed's own configuration, but none that a key of the recipe stands for",
    )
    evaluate_every: int = Field(
        default=1,
        gt=0,
        description="epochs between evaluations: on the validation split, or on the test split where there is none",
    )
    checkpoint_every: int = Field(default=1, gt=0, description="epochs between checkpoints")
    checkpoint_steps: int | None = Field(default=None, gt=0, description="steps between checkpoints, besides")
    checkpoint_minutes: float | None = Field(default=15.0, gt=0, description="minutes between checkpoints, besides")
    keep_checkpoints: int = Field(default=2, gt=0, description="the newest so many; one is the least to go on from")
    skip_nonfinite: int = Field(
        default=0, ge=0, description="batches whose loss or gradient is not finite that may be left out; one more stops"
    )
    rank_timeout: float = Field(
        default=600.0, gt=0, description="seconds without a sign of one of several ranks after which the job ends"
    )
    loggers: LoggerNames = Field(
        default=["tensorboard"], description="tensorboard, wandb, mlflow; metrics.jsonl is always written"
    )
    log_every: int = Field(default=10, gt=0, description="steps between points of the step curves of the loggers")
    figures_every: int = Field(
        default=50, ge=0, description="epochs between figures in TensorBoard, and after the last; 0: none at all"
    )

    def model_post_init(self, _context: Any) -> None:
        staged = sum(epochs for _, epochs in self.resolutions or ())
        if self.resolutions and staged != self.epochs:
            raise ValueError(
                f"training.resolutions has stages of {staged} epochs together, and training.epochs is {self.epochs}: "
                "make them equal"
            )
        if self.engine == "torch" and (self.zero or self.deepspeed):
            raise ValueError("training.zero and training.deepspeed are DeepSpeed's: leave them out with engine torch")
        for path, ours in _OF_THE_RECIPE.items():
            section, _, key = path.rpartition(".")
            inside = self.deepspeed.get(section) if section else self.deepspeed
            if isinstance(inside, dict) and key in inside:
                raise ValueError(f"training.deepspeed.{path}: is set by {ours}; set that instead")


class RolloutConfig(Strict):
    """How any model of fields in time is called and trained. The defaults are the benchmark's."""

    target: Literal["frame", "increment"] = Field(
        default="frame", description="what the model's output is: the next frames, or what they add to the last one"
    )
    frames_in: int | None = Field(
        default=None, gt=0, description="the model sees only the last so many of the given frames; by default all"
    )
    noise: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="deviation of Gaussian noise on the frames that the model sees in training, in units of the "
        "normalised field",
    )
    steps_per_window: int | None = Field(
        default=None,
        gt=0,
        description="a step of the optimiser for every so many predicted windows, each a call of the model; by default "
        "one for a whole rollout",
    )
    pairs: Literal["window", "all"] = Field(
        default="window",
        description="all: train on the steps among the given frames, too, where rollout.frames_in leaves some",
    )
    pushforward: int = Field(
        default=0,
        ge=0,
        description="so many steps of the model's own, without gradient, before the one whose loss is taken; fewer "
        "where fewer frames go before",
    )

    def model_post_init(self, _context: Any) -> None:
        if self.pairs == "all" and self.frames_in is None:
            raise ValueError(
                "rollout.pairs all: there are no steps among the given frames where the model sees all of them at "
                "once; set rollout.frames_in, such as 1"
            )


class ComputeConfig(Strict):
    """How the same model is computed. All of it is off by default."""

    precision: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32",
        description="bfloat16, float16: autocast; parameters, states of the scan and the loss stay float32",
    )
    activation_checkpointing: bool = Field(
        default=False, description="keep only the input of each layer and compute the layer again in the backward"
    )
    compile: bool = Field(default=False, description="torch.compile for the encoder, the layers' MLPs and the decoder")


class Recipe(Strict):
    """One run's full configuration; nothing in it changes after reading. `load_recipe` reads and changes recipes.

    Examples:
        >>> import geomano_hpc as gm
        >>> recipe = gm.load_recipe("navier_stokes_smoke")
        >>> recipe.name, recipe.data.store, recipe.training.batch_size
        ('navier_stokes_smoke', PosixPath('data/navier_stokes_smoke.zarr'), 4)
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    data: DataConfig
    model: SerializeAsAny[ModelConfig] = Field(default_factory=default_model)
    loss: LossConfig = LossConfig()
    training: TrainingConfig = TrainingConfig()
    rollout: RolloutConfig = RolloutConfig()
    compute: ComputeConfig = ComputeConfig()

    @field_validator("model", mode="before")
    @classmethod
    def _by_the_model_that_it_names(cls, content: Any, info: ValidationInfo) -> ModelConfig:
        return model_section(content, recorded=bool(info.context and info.context.get(RECORDED)))

    def model_post_init(self, _context: Any) -> None:
        if self.compute.precision == "float16" and self.training.zero:
            # DeepSpeed 0.19 clips gradients that are still scaled there, and does not lower the scale on an overflow.
            raise ValueError("compute.precision float16 goes with training.zero 0 only; bfloat16 goes with any")
        self.model.check_recipe(self)
