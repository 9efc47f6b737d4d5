"""GeoMaNO: encoder, T layers, decoder (section "Novel Method").

Axes: B batch, H x W grid, h x w patches, D embedding, C channels. A 1D domain is a 1 x L grid; a 3D domain (x, y, t) is
an H x W grid whose frames are channels ("we treat the time dimension as an additional feature dimension").
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator
from torch import nn

from geomano_hpc.config import ModelConfig, register_model
from geomano_hpc.errors import ConfigError
from geomano_hpc.kernels import gelu
from geomano_hpc.models.parts.encoder import Decoder, Encoder, Grid
from geomano_hpc.models.parts.geomamba import GeoMambaKernel
from geomano_hpc.models.parts.grid_model import GridModel
from geomano_hpc.models.parts.local import DepthwiseConv
from geomano_hpc.models.parts.norm import PreNorm
from geomano_hpc.models.parts.sampling import AS_TRAINED, Sampling
from geomano_hpc.models.parts.stack import LayerStack, keeping_inputs
from geomano_hpc.models.parts.transport import Transport
from geomano_hpc.models.parts.way_out import WayOut
from geomano_hpc.models.parts.without_scan import KernelWithoutScan


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


class GeomanoConfig(ModelConfig):
    """GeoMaNO (section "Novel Method" of the paper)."""

    name: Literal["geomano"] = "geomano"
    depth: int = Field(default=8, gt=0, description="T, the number of GeoMaNO layers")
    embedding: int = Field(default=64, gt=0, description="ED, the feature embedding dimension")
    dstate: int = Field(default=16, gt=0, description="N, the hidden states per channel")
    expand: int = Field(default=1, gt=0, description="channels of the scan E = expand * embedding")
    mlp_ratio: float = Field(default=2.0, gt=0, description="hidden width of the layer's MLP over embedding")
    domain: Literal["auto", "1d", "2d", "3d"] = Field(
        default="2d",
        description="1d: a 1 x L grid; 3d: (x, y, t) with time as features; auto: as the store says. Decides other "
        "defaults",
    )
    kind: Literal["1d", "2d"] = Field(default="2d", description="vanilla GeoMamba-SSM or 2DGeoMamba-SSM")
    orders: Literal["paper", "corners", "sequence", "auto"] = Field(
        default="paper", description="auto: sequence on a line, else corners"
    )
    correction: Correction = Field(
        default="0011", description="none, learnable, or a mask with one digit per direction"
    )
    correction_form: Literal["equation", "state", "input"] = Field(
        default="equation", description="C h - R Bbar x, C (h - R Bbar x), or Algorithm 2's C (h - R x)"
    )
    encoder: Literal["pointwise", "local", "global"] = "pointwise"
    patch: int = Field(default=1, gt=0, description="side of a patch; 1 for the pointwise encoder")
    positional_encoding: bool = False
    position_frequencies: int = Field(
        default=8, gt=0, description="waves of each coordinate, of 1/4, 1/2, 1, 2, ... periods across the domain"
    )
    discretisation: Literal["physical", "pixel"] = Field(
        default="physical",
        description="on other grids than that of the training: scan, convolutions, patches and positions keep their "
        "lengths, or count points",
    )
    periodic: Literal["off", "auto"] = Field(
        default="off",
        description="auto: along the axes that the store calls periodic convolutions wrap, positions are whole waves, "
        "and a 2d scan is closed on the ring",
    )
    conv_size: int = Field(default=3, gt=0, description="points across the depthwise convolution before the scan; odd")
    mlp_conv: int = Field(
        default=0, ge=0, description="points across a depthwise convolution inside the layer's MLP; odd, 0: none"
    )
    spectral_modes: int = Field(
        default=0, ge=0, description="modes of a spectral branch beside the scan, on periodic domains; 0: none"
    )
    transport: int = Field(
        default=0,
        ge=0,
        description="heads of features that are carried along, each point's from the place that it names; 0: none",
    )
    path: Literal["normed", "linear"] = Field(
        default="normed",
        description="linear: a linear lift, no LayerNorm anywhere and no SiLU before the scan, so that sizes stay",
    )
    dt_rank: Annotated[int, Field(gt=0)] | Literal["auto", "full"] = Field(
        default="auto", description="rank of the time step: auto is a sixteenth of the embedding, full is no reduction"
    )
    scan_bias: bool = Field(default=False, description="a bias of dt, B and C, so that B x may be linear in x")
    exact_hold: bool = Field(
        default=False, description="Bbar is the appendix's zero-order hold (exp(dt A) - 1) / A B, and not dt B"
    )
    way_out: WayOut = Field(
        default="gated",
        description="after the scan y: SiLU(LayerNorm(y)) SiLU(z), y SiLU(z) or y, and then the projection",
    )
    dt_range: tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]] = Field(
        default=(1e-3, 1e-1), description="least and largest time step before training; the states reach about 1 / step"
    )
    scan: bool = Field(default=True, description="false: the scan is left out, and what it takes in goes past it")
    scan_backend: str = Field(default="auto", description="auto, or a backend by name (see geomano doctor)")

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_domain(cls, content: Any) -> Any:
        if not isinstance(content, dict):
            return content
        domain = str(content.get("domain"))
        found = {**_BY_DOMAIN.get(domain, {}), **content}
        if found.get("orders") == "auto" and domain != "auto":
            found["orders"] = "sequence" if domain == "1d" else "corners"
        return found

    @model_serializer(mode="wrap")
    def _as_written(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """While the domain is open, so are the defaults that it decides."""
        content: dict[str, Any] = dump(self)
        if self.domain != "auto":
            return content
        return {key: value for key, value in content.items() if key in self.model_fields_set or key == "name"}

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
        if self.transport and self.embedding % self.transport:
            raise ValueError(f"embedding {self.embedding} is not a multiple of transport {self.transport}")
        for key in ("conv_size", "mlp_conv"):
            size = getattr(self, key)
            if size > 0 and size % 2 == 0:
                raise ValueError(f"{key} is {size}: a convolution has a point in its middle, so take {size + 1}")
        if self.dt_range[0] >= self.dt_range[1]:
            raise ValueError(f"dt_range {list(self.dt_range)}: give the least time step first")
        if self.correction.isdigit() and len(self.correction) != self.directions:
            digits = {2: "two", 4: "four"}[self.directions]
            raise ValueError(f"correction {self.correction!r} needs {digits} digits, one for each scan direction")

    def backend(self) -> str:
        return self.scan_backend

    def build(self, in_channels: int, out_channels: int, grid: Grid | None = None) -> Any:
        if self.domain == "auto":
            raise ConfigError("model.domain auto: the data is not there to tell; set data.store, or model.domain")
        return super().build(in_channels, out_channels, grid)

    def check_grid(self, grid: Grid) -> None:
        if self.domain == "1d" and grid[0] != 1:
            raise ConfigError(
                f"model.domain 1d takes lines, and the data has {grid[0]} x {grid[1]} points: take recipe steady or "
                "rollout, or model.domain=2d"
            )

    def tied_to_grid(self) -> str:
        return "encoder global" if self.encoder == "global" else ""


class MLP(nn.Sequential):
    """Linear, GELU, Linear; ours with `conv`: a depthwise convolution of so many points before the GELU."""

    def __init__(self, features: int, hidden: int, backend: str, conv: int = 0) -> None:
        middle = DepthwiseConv(hidden, conv, activation="gelu", backend=backend) if conv else nn.GELU()
        super().__init__(nn.Linear(features, hidden), middle, nn.Linear(hidden, features))
        self.backend = backend

    def forward(
        self,
        x: torch.Tensor,
        pre_norm: Callable[[torch.Tensor], torch.Tensor] | None = None,
        where: Sampling = AS_TRAINED,
    ) -> torch.Tensor:
        """`pre_norm` of a layer is computed again in the backward, like what else costs little."""
        widen, middle, narrow = self

        def activated(hidden: torch.Tensor) -> torch.Tensor:
            if isinstance(middle, DepthwiseConv):
                return middle(hidden, where.spacing, where.periodic)
            return gelu(hidden, self.backend)

        hidden = keeping_inputs(lambda x: widen(x if pre_norm is None else pre_norm(x)), x)
        return keeping_inputs(lambda hidden: narrow(activated(hidden)), hidden)


def _kernel(config: GeomanoConfig) -> Any:
    around_the_scan: dict[str, Any] = {
        "expand": config.expand,
        "conv_size": config.conv_size,
        "spectral_modes": config.spectral_modes,
        "way_out": config.way_out,
        "activation": "none" if config.path == "linear" else "silu",
        "backend": config.scan_backend,
    }
    if not config.scan:
        return KernelWithoutScan(config.embedding, **around_the_scan)
    return GeoMambaKernel(
        config.embedding,
        dstate=config.dstate,
        kind=config.kind,
        orders=config.orders,
        correction=config.correction,
        correction_form=config.correction_form,
        dt_rank=config.dt_rank,
        dt_range=config.dt_range,
        scan_bias=config.scan_bias,
        exact_hold=config.exact_hold,
        **around_the_scan,
    )


def _norm(config: GeomanoConfig) -> nn.Module:
    """What stands before a part of a layer."""
    return nn.Identity() if config.path == "linear" else PreNorm(config.embedding, config.scan_backend)


class GeoMaNOLayer(nn.Module):
    """S = Z + GeoMambaKernel(LayerNorm(Z)); Z = S + Linear(LayerNorm(S)), where Linear is a two-layer MLP. Ours, with
    `transport`: S = S + Transport(LayerNorm(S)) between the two."""

    def __init__(self, config: GeomanoConfig) -> None:
        super().__init__()
        self.kernel_norm = _norm(config)
        self.kernel = _kernel(config)
        self.transport: Transport | None = None
        if config.transport:
            self.transport_norm = _norm(config)
            self.transport = Transport(config.embedding, config.transport)
        self.mlp_norm = _norm(config)
        hidden = round(config.mlp_ratio * config.embedding)
        self.mlp = MLP(config.embedding, hidden, config.scan_backend, config.mlp_conv)

    def forward(self, z_BhwD: torch.Tensor, where: Sampling = AS_TRAINED) -> torch.Tensor:
        s_BhwD = z_BhwD + self.kernel(z_BhwD, self.kernel_norm, where)
        if self.transport is not None:
            s_BhwD = s_BhwD + self.transport(self.transport_norm(s_BhwD), where)
        return s_BhwD + self.mlp(s_BhwD, self.mlp_norm, where)


@register_model
class GeoMaNO(GridModel):
    """The Geometric Mamba Neural Operator: a -> encode -> T GeoMaNO layers -> decode -> u.

    Channels last: [B, H, W, in_channels] -> [B, H, W, out_channels]. A 1D domain is a grid of 1 x L. Keywords are the
    keys of GeomanoConfig; a configuration as a whole is given as `config`.

    >>> import torch
    >>> import geomano_hpc as gm
    >>> model = gm.GeoMaNO(in_channels=3, out_channels=1, depth=2, embedding=16)
    >>> model(torch.zeros(2, 9, 11, 3)).shape
    torch.Size([2, 9, 11, 1])

    `grid` (H, W) is needed by the `global` encoder only: nothing else depends on the size of the grid.
    """

    Config = GeomanoConfig

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        grid: Grid | None = None,
        config: GeomanoConfig | None = None,
        **options: Any,
    ) -> None:
        super().__init__(in_channels, out_channels)
        config = GeomanoConfig.chosen(config, options)
        self.is_line = config.domain == "1d"
        self.counts_points, self.may_be_periodic = config.discretisation == "pixel", config.periodic == "auto"
        self.spectral_modes = config.spectral_modes
        D, variant = config.embedding, config.encoder
        self.sides = sides = (1 if self.is_line else config.patch, config.patch)  # patches of a line are pieces of it
        frequencies = config.position_frequencies if config.positional_encoding else 0
        is_linear = config.path == "linear"
        self.encoder = Encoder(in_channels, D, variant, sides, grid, frequencies, is_linear)
        self.layers = LayerStack(GeoMaNOLayer(config) for _ in range(config.depth))
        self.decoder = Decoder(D, out_channels, variant, sides, grid, is_linear)

    def forward(self, x_BHWC: torch.Tensor) -> torch.Tensor:
        self.check_input(x_BHWC)
        _, height, width, _ = x_BHWC.shape
        if self.is_line and height != 1:
            raise ConfigError(f"domain 1d takes a 1 x L grid, found {height} x {width}; set model.domain to 2d or 3d")
        where = self.where
        z_BhwD = self.layers(self.encoder(x_BHWC, where), where.of_patches(self.sides))
        return self.decoder(z_BhwD, height, width, where)

    @property
    def where(self) -> Sampling:
        """Where the points lie, as far as the configuration lets the model see it."""
        seen = self.sampling.in_pixels if self.counts_points else self.sampling
        return seen if self.may_be_periodic else seen.unrolled

    def place(self, sampling: Sampling) -> None:
        super().place(sampling)
        rings = self.where.periodic[1:] if self.is_line else self.where.periodic
        if self.spectral_modes and not all(rings):
            raise ConfigError(
                "model.spectral_modes is of periodic domains: the store must call its axes periodic, and "
                "model.periodic must be auto; else leave spectral_modes at 0"
            )

    def dense_parts(self) -> list[nn.Module]:
        """What a compiler can fuse: all but the GeoMamba kernel."""
        return [self.encoder, *(layer.get_submodule("mlp") for layer in self.layers), self.decoder]
