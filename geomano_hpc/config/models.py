"""The models that a recipe may name, and the keys of each. A key of one model is an error for another."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from geomano_hpc.config.strict import Strict


def _quoted(value: Any) -> Any:
    if isinstance(value, int):
        raise ValueError(f"write the mask in quotes, such as '0011' (YAML read the number {value})")
    return value


# One digit per scan direction, in the paper's order; a recipe writes it in quotes, since YAML takes 0011 for a number.
Correction = Annotated[str, BeforeValidator(_quoted), Field(pattern=r"^(none|learnable|[01]+)$")]

# What differs from the defaults below. The paper: positional encoding and the vanilla scan for 1D and 3D domains.
# Ours: a line has two directions instead of four, and so two copies of B x of which a mask dampens one.
_BY_DOMAIN: dict[str, dict[str, Any]] = {
    "1d": {"kind": "1d", "orders": "sequence", "correction": "01", "positional_encoding": True},
    "3d": {"kind": "1d", "positional_encoding": True},
}


class GeomanoConfig(Strict):
    """GeoMaNO (section "Novel Method" of the paper)."""

    name: Literal["geomano"] = "geomano"
    depth: int = Field(default=8, gt=0, description="T, the number of GeoMaNO layers")
    embedding: int = Field(default=64, gt=0, description="ED, the feature embedding dimension")
    dstate: int = Field(default=16, gt=0, description="N, the hidden states per channel")
    expand: int = Field(default=1, gt=0, description="channels of the scan E = expand * embedding")
    mlp_ratio: float = Field(default=2.0, gt=0, description="hidden width of the layer's MLP over embedding")
    domain: Literal["1d", "2d", "3d"] = Field(
        default="2d", description="1d: a 1 x L grid; 3d: (x, y, t) with time as features. Decides other defaults"
    )
    kind: Literal["1d", "2d"] = Field(default="2d", description="vanilla GeoMamba-SSM or 2DGeoMamba-SSM")
    orders: Literal["paper", "corners", "sequence"] = "paper"
    correction: Correction = Field(
        default="0011", description="none, learnable, or a mask with one digit per direction"
    )
    correction_form: Literal["equation", "state"] = "equation"
    encoder: Literal["pointwise", "local", "global"] = "pointwise"
    patch: int = Field(default=1, gt=0, description="side of a patch; 1 for the pointwise encoder")
    positional_encoding: bool = False
    scan_backend: str = Field(default="auto", description="auto, or a backend by name (see geomano doctor)")

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_domain(cls, content: Any) -> Any:
        if not isinstance(content, dict):
            return content
        return {**_BY_DOMAIN.get(str(content.get("domain")), {}), **content}

    @property
    def directions(self) -> int:
        return 2 if self.orders == "sequence" else 4

    def model_post_init(self, _context: Any) -> None:
        if (self.encoder == "pointwise") != (self.patch == 1):
            raise ValueError(
                f"encoder {self.encoder} does not go with patch {self.patch}: pointwise is patch 1, local and global "
                "are more"
            )
        if self.domain == "1d" and (self.orders, self.kind) != ("sequence", "1d"):
            raise ValueError("domain 1d goes with orders sequence and kind 1d: a line is scanned forth and back")
        if self.correction.isdigit() and len(self.correction) != self.directions:
            digits = {2: "two", 4: "four"}[self.directions]
            raise ValueError(f"correction {self.correction!r} needs {digits} digits, one for each scan direction")


class TransolverConfig(Strict):
    """Transolver for structured 2D grids. The defaults are its published configuration for Darcy flow; that for
    Navier-Stokes has embedding 256 and 32 slices."""

    name: Literal["transolver"] = "transolver"
    depth: int = Field(default=8, gt=0)
    embedding: int = Field(default=128, gt=0)
    heads: int = Field(default=8, gt=0)
    slices: int = Field(default=64, gt=0, description="physical states that the points are assigned to")
    mlp_ratio: float = Field(default=1.0, gt=0)
    reference: int = Field(default=8, gt=0, description="positions are distances to a grid of so many points a side")

    def model_post_init(self, _context: Any) -> None:
        if self.embedding % self.heads:
            raise ValueError(f"embedding {self.embedding} is not a multiple of heads {self.heads}")


class FnoConfig(Strict):
    """FNO, the Fourier Neural Operator, of the package neuraloperator. The defaults are the FNO paper's in 2D."""

    name: Literal["fno"] = "fno"
    depth: int = Field(default=4, gt=0)
    embedding: int = Field(default=32, gt=0)
    modes: int = Field(default=12, gt=0, description="frequencies that are kept on each side of zero")


class UnoConfig(Strict):
    """U-NO, the U-shaped neural operator, of the package neuraloperator: five levels, the middle ones coarser."""

    name: Literal["uno"] = "uno"
    embedding: int = Field(default=32, gt=0)
    modes: int = Field(default=12, gt=1, description="frequencies that are kept on each side of zero")


MODEL_CONFIGS: dict[str, type[Strict]] = {
    "geomano": GeomanoConfig,
    "transolver": TransolverConfig,
    "fno": FnoConfig,
    "uno": UnoConfig,
}


def _name(content: Any) -> str:
    return str(content.get("name", "geomano") if isinstance(content, dict) else getattr(content, "name", None))


ModelConfig = Annotated[
    Annotated[GeomanoConfig, Tag("geomano")]
    | Annotated[TransolverConfig, Tag("transolver")]
    | Annotated[FnoConfig, Tag("fno")]
    | Annotated[UnoConfig, Tag("uno")],
    Discriminator(
        _name,
        custom_error_type="unknown_model",
        custom_error_message=f"name is not known; choose one of {', '.join(MODEL_CONFIGS)}",
    ),
]
