from pathlib import Path

import pytest

from geomano_hpc.errors import ConfigError
from geomano_hpc.slurm import ClusterProfile, load_profile, profile_names
from geomano_hpc.slurm.executors import SlurmJobs, sbatch_text
from geomano_hpc.slurm.profile import user_folder


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    user_folder().mkdir(parents=True)
    return user_folder()


def test_shipped_profiles_are_valid_and_options_change_them() -> None:
    assert {"a100", "a100_two_nodes", "cpu"} <= set(profile_names())
    for name in profile_names():
        load_profile(name)
    two = load_profile("a100_two_nodes", {"partition": "long", "nodes": None})
    assert (two.partition, two.nodes, two.tasks_per_node) == ("long", 2, 4)
    assert two.node_hours == 48


def test_own_profile_is_found_by_name_before_a_shipped_one_and_by_path(own_folder: Path, tmp_path: Path) -> None:
    (own_folder / "a100.yaml").write_text("partition: mine\n")
    (own_folder / "lab.yaml").write_text("partition: lab\n")
    (tmp_path / "here.yaml").write_text("partition: here\n")
    assert load_profile("a100").partition == "mine"
    assert "lab" in profile_names()
    assert load_profile(str(tmp_path / "here.yaml")).partition == "here"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("partion: gpu", "unknown key partion; did you mean 'partition'?"),
        ("time: 24:00:00", "time: write it in quotes"),  # YAML makes a number of it, 86400
        ("time: 'a day'", "time: expected minutes, h:mm:ss or d-hh:mm:ss (found 'a day')"),
        ("gpus: -1", "gpus: "),
        ("cpus: true", "cpus: true and false go with switches only"),
        ("environment: {'A; rm': x}", "environment: 'A; rm' is not a name"),
        ("mpi: openmpi", "mpi: "),
        ("time: '2'", "stop_seconds 120 leaves too little of a time limit of 2 minutes"),
        ("- gpu", "expected a mapping of keys, found list"),
        ("a: [", "not valid YAML"),
    ],
)
def test_wrong_profile_is_an_error_that_names_the_key(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        load_profile(str(file))
    assert str(raised.value).startswith(f"{file}: {message}")


def test_options_of_sbatch_may_be_flags() -> None:
    chosen = load_profile(None, {"sbatch": {"exclusive": True, "nice": 1, "reservation": "course"}})
    assert chosen.sbatch == {"exclusive": True, "nice": 1, "reservation": "course"}
    assert chosen.sbatch["exclusive"] is True
    assert "#SBATCH --exclusive\n" in sbatch_text(Path("jobs"), SlurmJobs("s", chosen), 1)


def test_unknown_profile_names_the_closest_and_where_own_ones_go(own_folder: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        load_profile("a10")
    assert "did you mean 'a100'?" in str(raised.value)
    assert str(own_folder) in str(raised.value)


@pytest.mark.parametrize(
    ("time", "minutes"),
    [("90", 90), ("90:30", 91), ("1:30:00", 90), ("2-0", 2880), ("1-12:30", 2190), ("1-00:00:01", 1441)],
)
def test_time_is_read_as_slurm_reads_it(time: str, minutes: int) -> None:
    assert ClusterProfile(time=time).minutes == minutes
