import os
import re
from pathlib import Path

import pytest

from geomano_hpc.errors import ConfigError, GeomanoError
from geomano_hpc.slurm.testbed import Testbed, cluster, command, configuration, packages
from geomano_hpc.slurm.testbed.daemons import Daemons


def addresses(ports: set[int]) -> set[str]:
    """Where this machine listens at these ports, as the kernel writes addresses."""
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    listening = [line[1].split(":") for line in lines if line[3] == "0A"]
    return {address for address, port in listening if int(port, 16) in ports}


def processes_of(folder: Path) -> list[str]:
    """Command lines of living processes that name the folder."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if f"{folder}/" in words:
            found.append(words)
    return found


def test_testbed_that_is_up_stays_up_and_listens_on_loopback_only(
    testbed: Testbed, capsys: pytest.CaptureFixture[str]
) -> None:
    assert testbed.up() is False
    command.status(testbed.folder)
    shown = capsys.readouterr().out
    assert re.search(r"slurmdbd +running", shown)
    assert re.search(r"node2 +\w", shown)
    assert f"export SLURM_CONF={testbed.folder}/slurm.conf" in shown
    conf = (testbed.folder / "slurm.conf").read_text()
    ports = {int(port) for port in re.findall(r"Port=(\d+)", conf)}
    assert len(ports) == 4
    assert addresses(ports) == {"0100007F"}


@pytest.mark.slurm
def test_second_testbed_comes_up_beside_the_first_and_leaves_nothing(
    testbed: Testbed, capsys: pytest.CaptureFixture[str]
) -> None:
    second = Testbed(Path(f"{testbed.folder}-2"))
    try:
        command.up(second.folder)
        assert capsys.readouterr().out == f"export SLURM_CONF={second.folder}/slurm.conf\n"
        assert second.run("srun", "--nodes=2", "hostname").split() in (["node1", "node2"], ["node2", "node1"])
    finally:
        command.down(second.folder)
    assert not second.folder.exists()
    assert processes_of(second.folder) == []
    command.down(second.folder)
    assert "was not up" in capsys.readouterr().err
    assert testbed.is_up()


def test_command_says_in_one_line_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.getuid", lambda: 1000)
    monkeypatch.setattr("sys.argv", ["geomano-slurm-testbed", "up", "--folder", str(tmp_path / "bed")])
    with pytest.raises(SystemExit, match="2"):
        command.main()
    assert capsys.readouterr().err.startswith("error: the Slurm testbed must be run by root")


def test_missing_packages_rights_and_long_paths_are_said_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed = Testbed(tmp_path / "bed")
    with monkeypatch.context() as patch:
        patch.setattr("os.getuid", lambda: 1000)
        with pytest.raises(ConfigError, match="must be run by root"):
            bed.up()
    monkeypatch.setattr("os.getuid", lambda: 0)
    with monkeypatch.context() as patch:
        patch.setitem(packages.PACKAGES, "munge", "/nowhere/munged")
        patch.setitem(packages.PACKAGES, "slurmd", "/nowhere/slurmd")
        with pytest.raises(ConfigError, match=r"apt-get install --no-install-recommends .*slurmd.* munge"):
            bed.up()
    monkeypatch.setattr(cluster, "missing_packages", list)
    with pytest.raises(ConfigError, match="choose a folder of at most 80 characters"):
        Testbed(tmp_path / ("x" * 80)).up()
    assert not bed.folder.exists()
    with pytest.raises(GeomanoError, match="is not up; bring it up with geomano-slurm-testbed up"):
        command.status(bed.folder)


def test_daemon_that_ends_at_once_is_named_with_its_last_words_and_nothing_stays_up(
    testbed: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configuration, "slurmdbd_conf", lambda *_: "NoSuchKey=1\n")
    broken = Testbed(Path(f"{testbed.folder}-broken"))
    try:
        with pytest.raises(GeomanoError, match=r"slurmdbd ended: .*NoSuchKey|slurmdbd ended: .*slurmdbd.conf"):
            broken.up()
        assert processes_of(broken.folder) == []
    finally:
        broken.down()


def test_process_id_of_another_process_does_not_count(tmp_path: Path) -> None:
    daemons = Daemons(tmp_path)
    daemons.start("sleeper", ["sleep", "60"])
    assert daemons.is_running("sleeper")
    daemons.stop("sleeper")
    assert daemons.names() == []
    (tmp_path / "pid" / "stale.started").write_text(f"{os.getpid()} 1\n")  # this process, with another start time
    assert not daemons.is_running("stale")
    daemons.stop("stale")  # and this process goes on


def test_ports_are_different_and_free() -> None:
    ports = configuration.free_ports()
    assert len({ports.slurmctld, ports.slurmdbd, *ports.nodes.values()}) == 4
