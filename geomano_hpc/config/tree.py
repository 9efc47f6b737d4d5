"""The configuration tree. Every key that a recipe may hold is a field here; any other key is an error."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_not_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) and info.field_name and cls.model_fields[info.field_name].annotation is not bool:
            raise ValueError("true and false go with switches only")
        return value


class GenerateConfig(Strict):
    """How to make the data where the store is missing: the FNO recipe at a size of one's own."""

    problem: Literal["darcy", "navier_stokes"]
    train_samples: int = Field(gt=0)
    test_samples: int = Field(gt=0)
    grid: int = Field(ge=8, description="points per side that the equation is solved on")
    stride: int = Field(default=1, ge=1, description="keep every stride-th point of the solved grid")
    viscosity: float = Field(default=1e-5, gt=0, description="Navier-Stokes only")
    seed: int = Field(default=0, ge=0)


class DataConfig(Strict):
    store: Path = Field(description="the prepared Zarr store; relative to the folder where geomano is started")
    train_samples: int | None = Field(default=None, gt=0, description="use only the first so many training samples")
    test_samples: int | None = Field(default=None, gt=0, description="use only the first so many test samples")
    generate: GenerateConfig | None = None


def _quoted(value: Any) -> Any:
    if isinstance(value, int):
        raise ValueError(f"write the mask in quotes, such as '0011' (YAML read the number {value})")
    return value


# One digit per scan direction, in the paper's order; a recipe writes it in quotes, since YAML takes 0011 for a number.
Correction = Annotated[str, BeforeValidator(_quoted), Field(pattern=r"^(none|learnable|[01]+)$")]


class ModelConfig(Strict):
    """GeoMaNO (section "Novel Method" of the paper)."""

    name: Literal["geomano"] = "geomano"
    depth: int = Field(default=8, gt=0, description="T, the number of GeoMaNO layers")
    embedding: int = Field(default=64, gt=0, description="ED, the feature embedding dimension")
    dstate: int = Field(default=16, gt=0, description="N, the hidden states per channel")
    expand: int = Field(default=1, gt=0, description="channels of the scan E = expand * embedding")
    mlp_ratio: float = Field(default=2.0, gt=0, description="hidden width of the layer's MLP over embedding")
    kind: Literal["1d", "2d"] = Field(default="2d", description="vanilla GeoMamba-SSM or 2DGeoMamba-SSM")
    orders: Literal["paper", "corners"] = "paper"
    correction: Correction = Field(
        default="0011", description="none, learnable, or a mask with one digit per direction"
    )
    correction_form: Literal["equation", "state"] = "equation"
    encoder: Literal["pointwise", "local"] = "pointwise"
    patch: int = Field(default=1, gt=0, description="side of a patch; 1 for the pointwise encoder")
    positional_encoding: bool = False
    scan_backend: str = Field(default="auto", description="auto, or a backend by name (see geomano doctor)")

    def model_post_init(self, _context: Any) -> None:
        if (self.encoder == "pointwise") != (self.patch == 1):
            raise ValueError(
                f"encoder {self.encoder} does not go with patch {self.patch}: pointwise is patch 1, local is more"
            )
        if self.correction.isdigit() and len(self.correction) != 4:
            raise ValueError(f"correction {self.correction!r} needs four digits, one for each scan direction")


class LossConfig(Strict):
    gradient_weight: float = Field(
        default=0.0, ge=0, description="weight of the relative L2 of the spatial derivatives"
    )


class TrainingConfig(Strict):
    epochs: int = Field(default=500, gt=0)
    batch_size: int = Field(default=4, gt=0, description="over all ranks")
    lr: float = Field(default=3e-4, gt=0, description="the peak of the one-cycle schedule")
    optimizer: Literal["adamw"] = "adamw"
    weight_decay: float = Field(default=1e-5, ge=0)
    scheduler: Literal["onecycle"] = "onecycle"
    clip: float | None = Field(default=None, gt=0, description="largest norm of the gradient")
    seed: int = Field(default=0, ge=0)
    evaluate_every: int = Field(default=1, gt=0, description="epochs between evaluations on the test split")
    checkpoint_every: int = Field(default=1, gt=0, description="epochs between checkpoints")
    keep_checkpoints: int = Field(default=2, gt=0)


class Recipe(Strict):
    """One run's full configuration."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    data: DataConfig
    model: ModelConfig = ModelConfig()
    loss: LossConfig = LossConfig()
    training: TrainingConfig = TrainingConfig()
