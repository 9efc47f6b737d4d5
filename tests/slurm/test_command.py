"""Jobs that run a `geomano` command, through submitit's local executor and as a submission."""

from pathlib import Path

import pytest

from geomano_hpc.cli.app import main
from geomano_hpc.errors import ConfigError, GeomanoError
from geomano_hpc.slurm import ClusterProfile, local_executor, sbatch_text
from geomano_hpc.slurm.command import GeomanoCommand, SubmittedCommand, mpi_jobs


def test_command_runs_in_a_job_in_the_folder_that_it_was_given(tmp_path: Path) -> None:
    words = ("data", "generate", "darcy", "--samples", "2", "--grid", "8", "--out", "data/d.h5")
    job = local_executor(tmp_path / "jobs", "generate", minutes=5).submit(GeomanoCommand(words, str(tmp_path)))
    job.result()
    assert (tmp_path / "data" / "d.h5").is_file()


def test_command_that_fails_fails_its_job(tmp_path: Path) -> None:
    with pytest.raises(GeomanoError, match="geomano data convert ended with exit code 2 on rank 0"):
        GeomanoCommand(("data", "convert"), str(tmp_path))()


@pytest.mark.parametrize(("end", "code"), [("kill -TERM $$", 75), ("kill -USR2 $$; exit 0", None)])
def test_stopped_command_asks_to_be_started_again_and_a_time_out_is_left_to_submitit(
    end: str, code: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{end}\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))
    command = GeomanoCommand(("data", "convert"), str(tmp_path))
    if code is None:
        command()
        return
    with pytest.raises(SystemExit) as ended:
        command()
    assert ended.value.code == code


def test_ranks_are_spread_evenly_and_get_the_mpi_plugin_of_the_profile() -> None:
    profile = ClusterProfile(gpus=4, cpu_partition="cpu", mpi="pmi2")
    text = sbatch_text(Path("/jobs"), mpi_jobs("data-convert", profile, ranks=16, nodes=2), count=1)
    assert "#SBATCH --ntasks-per-node=8" in text
    assert "#SBATCH --nodes=2" in text
    assert "--mpi=pmi2" in text
    assert "gpu" not in text
    with pytest.raises(ConfigError, match="--ranks 3 on --nodes 2"):
        mpi_jobs("data-convert", profile, ranks=3, nodes=2)


def test_submitted_command_is_the_one_that_was_typed_without_the_options_of_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    submitted: list[tuple[object, ...]] = []

    def submit_ranks(*arguments: object) -> SubmittedCommand:
        submitted.append(arguments)
        return SubmittedCommand("12", tmp_path / "12_0_log.out", tmp_path / "12_0_log.err")

    monkeypatch.setattr("geomano_hpc.slurm.command.submit_ranks", submit_ranks)
    typed = ["data", "convert", "one.mat", "two.mat", "--problem", "rollout", "--axes", "x y t sample", "--field", "u"]
    typed += ["--field", "v", "--frames-in", "2", "--frames-out", "3", "--no-normalise", "--out", "d/x.zarr"]
    with pytest.raises(SystemExit, match="0"):
        main([*typed, "--cluster", "slurm", "--ranks", "16", "--nodes", "2", "--profile", "cpu"])
    words, folder, profile, ranks, nodes = submitted[0]
    assert list(words) == ["data", "convert", *words[2:]]  # type: ignore[call-overload,index]
    assert sorted(words) == sorted(typed)  # type: ignore[call-overload]
    said = list(words)  # type: ignore[call-overload]
    assert [said[at + 1] for at, word in enumerate(said) if word == "--field"] == ["u", "v"]
    assert (folder, ranks, nodes) == (Path("d/jobs"), 16, 2)
    assert isinstance(profile, ClusterProfile)
    assert "submitted job 12: 16 ranks on 2 nodes, for d/x.zarr" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--ranks", "4"), "--ranks goes with --cluster slurm"),
        (("--cluster", "pbs"), "--cluster 'pbs' is not known"),
        (("--cluster", "slurm", "--profile", "nowhere"), "no profile or file 'nowhere'"),
        (("--cluster", "slurm", "--ranks", "3", "--nodes", "2"), "--ranks 3 on --nodes 2"),
    ],
)
def test_wrong_options_of_the_cluster_are_errors(
    options: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "d.h5")
    with pytest.raises(SystemExit, match="2"):
        main(["data", "generate", "darcy", "--samples", "2", "--grid", "8", "--out", out, *options])
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
