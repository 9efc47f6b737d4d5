from pathlib import Path

import pytest

from geomano_hpc.errors import ConfigError
from geomano_hpc.slurm import ClusterProfile, SlurmJobs, sbatch_text, slurm_executor

GOLDEN = Path(__file__).parent / "sbatch_golden.txt"
PROFILE = ClusterProfile(
    partition="gpu",
    account="pde",
    qos="long",
    constraint="a100",
    nodes=2,
    gpus=4,
    cpus=8,
    memory_gb=256,
    time="1:30:00",
    at_once=3,
    modules=["cuda/12.4"],
    setup=["ulimit -l unlimited"],
    environment={"NCCL_DEBUG": "WARN", "GREETING": "it's $HOME"},
    sbatch={"reservation": "course"},
)


def test_submission_file_is_the_golden_one() -> None:
    jobs = SlurmJobs.training("study", PROFILE, Path("/runs/study/jobs/code_0123"))
    assert sbatch_text(Path("/runs/study/jobs"), jobs, count=5) == GOLDEN.read_text()


def test_run_without_gpu_asks_for_none() -> None:
    text = sbatch_text(Path("/jobs"), SlurmJobs.training("study", ClusterProfile(gpus=0)), count=1)
    assert "gpu" not in text
    assert "partition" not in text
    assert "array" not in text


def test_job_without_gpu_goes_to_the_partition_for_them() -> None:
    profile = ClusterProfile(partition="gpu", cpu_partition="cpu", gres="gpu:a100:4", constraint="a100", gpus=4)
    text = sbatch_text(Path("/jobs"), SlurmJobs("report", profile, after=("12", "13")), count=1)
    assert "--partition=cpu" in text
    assert "--dependency=afterany:12:13" in text
    assert "a100" not in text
    assert "#SBATCH --gres=gpu:a100:4" in sbatch_text(Path("/jobs"), SlurmJobs.training("study", profile), count=1)


def test_slurm_without_a_cluster_is_an_error_and_never_a_local_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="no sbatch on this machine"):
        slurm_executor(tmp_path, SlurmJobs("study", ClusterProfile()))
