"""A cluster profile is data: what to ask of a cluster, and what its nodes need before Python starts."""

import os
import re
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from geomano_hpc.config.explain import validated
from geomano_hpc.config.strict import Strict
from geomano_hpc.config.yaml_files import YamlFiles

_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<clock>\d+(?::\d+){0,2})")


class ClusterProfile(Strict):
    """Every key that a profile may hold; any other key is an error. What is not set is left to the cluster."""

    partition: str | None = None
    cpu_partition: str | None = Field(
        default=None, description="for jobs without a GPU, which are data preparation and reports; else `partition`"
    )
    account: str | None = None
    qos: str | None = None
    constraint: str | None = Field(default=None, description="features of the nodes, such as a100")
    gres: str | None = Field(default=None, description="asked for instead of --gpus-per-node, such as gpu:a100:4")
    nodes: int = Field(default=1, ge=1, description="per run")
    gpus: int = Field(default=1, ge=0, description="per node, and as many ranks per node; 0 trains on the CPU")
    ranks_per_node: int | None = Field(default=None, ge=1, description="where not one per GPU; for runs on CPUs")
    cpus: int = Field(default=8, ge=1, description="cores per rank, and its threads (OMP_NUM_THREADS)")
    memory_gb: int | None = Field(default=None, ge=1, description="per node")
    time: str = Field(default="1-00:00:00", description="limit of one start: minutes, h:mm:ss or d-hh:mm:ss, in quotes")
    stop_seconds: int = Field(
        default=120, ge=1, description="so long before the limit a run is told to write its checkpoint and to requeue"
    )
    at_once: int = Field(default=16, ge=1, description="runs of one study at the same time (array_parallelism)")
    mpi: Literal["pmix", "pmi2", "none"] = Field(
        default="pmix", description="srun --mpi for data preparation: pmix for Open MPI, pmi2 for MPICH"
    )
    sbatch: dict[str, bool | str | int] = Field(
        default_factory=dict,
        description="any other option of sbatch by its long name, such as reservation: course, or exclusive: true",
    )
    modules: list[str] = Field(default_factory=list, description="module load, in this order")
    setup: list[str] = Field(default_factory=list, description="lines of bash before Python starts")
    environment: dict[str, str] = Field(default_factory=dict, description="variables for the job")

    @field_validator("time", mode="before")
    @classmethod
    def _time_is_text(cls, value: Any) -> Any:
        if not isinstance(value, str):  # YAML reads 24:00:00 without quotes as the number 86400
            raise ValueError("write it in quotes, such as '90' (minutes), '12:00:00' or '2-00:00:00'")
        if not _TIME.fullmatch(value):
            raise ValueError("expected minutes, h:mm:ss or d-hh:mm:ss")
        return value

    @field_validator("environment", "sbatch")
    @classmethod
    def _names_are_words(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in value:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", name):
                raise ValueError(f"{name!r} is not a name")
        return value

    @model_validator(mode="after")
    def _time_to_train_is_left(self) -> "ClusterProfile":
        if self.stop_seconds > 45 * self.minutes:
            raise ValueError(
                f"stop_seconds {self.stop_seconds} leaves too little of a time limit of {self.minutes} minutes: a run "
                "would be told to stop as soon as it starts; lower stop_seconds or raise the limit"
            )
        return self

    @property
    def minutes(self) -> int:
        """The time limit, rounded up."""
        found = _TIME.fullmatch(self.time)
        assert found is not None
        days, parts = found["days"], [int(part) for part in found["clock"].split(":")]
        if days is not None:  # d-h[:m[:s]]
            hours, minutes, seconds = [*parts, 0, 0][:3]
        elif len(parts) == 3:
            hours, minutes, seconds = parts
        else:  # m[:s]
            hours, (minutes, seconds) = 0, [*parts, 0][:2]
        return (int(days or 0) * 24 + hours) * 60 + minutes + (seconds > 0)

    @property
    def tasks_per_node(self) -> int:
        return self.ranks_per_node or max(1, self.gpus)

    @property
    def node_hours(self) -> float:
        """What one start of a run may take at most."""
        return self.nodes * self.minutes / 60


def user_folder() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "geomano" / "profiles"


PROFILES = YamlFiles("profile", resources.files("geomano_hpc.slurm") / "profiles", user_folder)


def profile_names() -> list[str]:
    """Shipped profiles and the user's own."""
    return PROFILES.names()


def load_profile(name_or_path: str | None, changes: dict[str, Any] | None = None) -> ClusterProfile:
    """A profile of the user's own, a shipped one, or a file; without a name, the defaults: a GPU and a day."""
    content, source = ({}, "the options") if name_or_path is None else PROFILES.read(name_or_path)
    given = {key: value for key, value in (changes or {}).items() if value is not None}
    return validated(ClusterProfile, {**content, **given}, source)
