import contextlib
import platform
from pathlib import Path

import pytest

from geomano_hpc.atomic import new_folder, replacing, write_json, write_text
from geomano_hpc.errors import GeomanoError


def test_file_keeps_its_old_content_when_writing_fails(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    write_json(file, {"a": 1})
    with contextlib.suppress(RuntimeError), replacing(file) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert file.read_text() == '{\n  "a": 1\n}\n'
    assert list(tmp_path.iterdir()) == [file]


def test_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with contextlib.suppress(RuntimeError), new_folder(tmp_path / "checkpoint") as temporary:
        (temporary / "half").touch()
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with new_folder(tmp_path / "checkpoint") as temporary:
        (temporary / "whole").touch()
        assert not (tmp_path / "checkpoint").exists()
    assert (tmp_path / "checkpoint" / "whole").is_file()


def test_folder_that_another_process_made_first_is_kept_and_named(tmp_path: Path) -> None:
    path = tmp_path / "store.zarr"

    def build() -> None:
        with new_folder(path) as temporary:
            (temporary / "ours").touch()
            path.mkdir()
            (path / "theirs").touch()

    with pytest.raises(GeomanoError, match=r"store.zarr: cannot be put in place: another process made it first"):
        build()
    assert [entry.name for entry in path.iterdir()] == ["theirs"]
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    dead, alive = (tmp_path / f".a.txt.partial-{platform.node()}-{pid}" for pid in (2**22 + 1, 1))
    elsewhere = tmp_path / ".a.txt.partial-other-host-1"
    for file in (dead, alive, elsewhere):
        file.touch()
    write_text(tmp_path / "a.txt", "text")
    assert {path.name for path in tmp_path.iterdir()} == {"a.txt", alive.name, elsewhere.name}
