"""The manifest of a study: which runs belong to it and in which order, and how it was launched.

runs/<study>/study.yaml      the study as it was launched last
             manifest.json   every run of every launch under this name, and the launches
             jobs/           submitit's files, the code that the jobs run, what they print
             report/         of `geomano report`
How far a run is stands in its own folder alone (see run_folder.py), so that nothing can disagree with it.
"""

import getpass
import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from geomano_hpc.atomic import write_json, write_text
from geomano_hpc.config.explain import validated
from geomano_hpc.config.yaml_text import read_mapping, write_yaml
from geomano_hpc.errors import ConfigError
from geomano_hpc.launch.study import PlannedRun, Study
from geomano_hpc.training.records.run_folder import RunFolder, run_folders


def study_file(study: Path) -> Path:
    return study / "study.yaml"


def manifest_file(study: Path) -> Path:
    return study / "manifest.json"


def jobs_folder(study: Path) -> Path:
    return study / "jobs"


def report_folder(study: Path) -> Path:
    return study / "report"


@dataclass(frozen=True)
class Manifest:
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)  # name -> what varies, and its value
    launches: list[dict[str, Any]] = field(default_factory=list)


def read_manifest(study: Path) -> Manifest:
    """Empty for a folder that no launch has made, such as that of `geomano train`."""
    file = manifest_file(study)
    if not file.is_file():
        return Manifest()
    content = json.loads(file.read_text(encoding="utf-8"))
    return Manifest({run["name"]: dict(run["point"]) for run in content["runs"]}, content["launches"])


def keep_in_manifest(study: Study, runs: Sequence[PlannedRun], folder: Path, how: dict[str, Any]) -> None:
    """To be called while `deciding`. The runs of earlier launches stay; those that are new come first.

    `how` tells the cluster and its options: `geomano retry` does it the same way again.
    """
    write_text(study_file(folder), write_yaml(study.model_dump(mode="json")))
    kept = read_manifest(folder)
    added = {run.name: run.point for run in runs}
    launch = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "by": f"{getpass.getuser()}@{platform.node()}",
        "runs": len(runs),
        **how,
    }
    names = kept.runs if added.keys() <= kept.runs.keys() else {**added, **kept.runs}
    # As pairs: the keys of a mapping would be sorted, and a label has them in the order of the study.
    listed = [{"name": name, "point": list(point.items())} for name, point in names.items()]
    write_json(manifest_file(folder), {"runs": listed, "launches": [*kept.launches, launch]})


def runs_of_study(study: Path) -> list[RunFolder]:
    """Every run folder of the study, those of the manifest first and in its order."""
    position = {name: number for number, name in enumerate(read_manifest(study).runs)}
    return sorted(run_folders(study), key=lambda run: position.get(run.path.name, len(position)))


def kept_study(folder: Path) -> Study:
    file = study_file(folder)
    if not file.is_file():
        raise ConfigError(f"{folder}: no study was launched here (no {file.name}); start one with `geomano launch`")
    return validated(Study, read_mapping(file.read_text(encoding="utf-8"), str(file)), str(file))
