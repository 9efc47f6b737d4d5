from pathlib import Path

import pytest

from geomano_hpc.errors import ConfigError
from geomano_hpc.slurm import Resources, make_executor, sbatch_text

GOLDEN = Path(__file__).parent / "sbatch_golden.txt"


def test_submission_file_is_the_golden_one() -> None:
    resources = Resources(partition="gpu", account="pde", gpus=1, cpus=4, memory_gb=32, minutes=90, at_once=3)
    assert sbatch_text(Path("/runs/study/jobs"), "study", resources, jobs=5) == GOLDEN.read_text()


def test_run_without_gpu_asks_for_none() -> None:
    text = sbatch_text(Path("/jobs"), "study", Resources(gpus=0), jobs=1)
    assert "gpu" not in text
    assert "partition" not in text


def test_slurm_without_a_cluster_is_an_error_and_never_a_local_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="no sbatch on this machine"):
        make_executor("slurm", tmp_path, "study", Resources())
