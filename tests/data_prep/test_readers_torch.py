"""Tensors are read from .pt files without torch, and nothing in such a file can be made to run."""

import io
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from geomano_hpc.data_prep.readers import open_variable, variable_names
from geomano_hpc.errors import DataError
from tests.support.raw_files import read_field
from tests.support.real_data import FOLDER, needs_real_data


@needs_real_data
@pytest.mark.parametrize(
    "name", ["darcy_train_16.pt", "darcy_test_16.pt", "darcy_test_32.pt", "burgers_train_16.pt", "burgers_test_16.pt"]
)
def test_neuraloperators_files_are_read_as_torch_reads_them(name: str) -> None:
    path = FOLDER / "neuralop" / name
    expected = torch.load(path, weights_only=True)
    assert variable_names(path) == list(expected)
    for key in ("x", "y"):
        found = read_field(path, key)
        assert found.dtype == expected[key].numpy().dtype
        assert np.array_equal(found, expected[key].numpy())
        assert np.array_equal(open_variable(path, key).read(0, 7, 9), expected[key][7:9].numpy())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64, torch.uint8, torch.bool])
def test_tensors_of_every_layout_are_read(tmp_path: Path, dtype: torch.dtype) -> None:
    values = (torch.randn(6, 5, 4) * 3).to(dtype)
    tensors = {"x": values, "turned": values.permute(2, 0, 1), "part": values[1:4, ::2], "n": torch.ones(())}
    torch.save({**tensors, "note": "text", "list": [1, 2.5, None]}, tmp_path / "data.pt")
    assert variable_names(tmp_path / "data.pt") == list(tensors)
    for key, tensor in tensors.items():
        assert np.array_equal(read_field(tmp_path / "data.pt", key), tensor.numpy())


def archive(path: Path, pickled: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", pickled)
        file.writestr("archive/data/0", bytes(64))
    return path


class Malicious:
    def __init__(self, function: object, *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("function", [os.system, eval, exec, getattr, subprocess.Popen])
def test_malicious_pickle_runs_nothing(tmp_path: Path, function: object, protocol: int) -> None:
    mark = tmp_path / "ran"
    argument = f"touch {mark}" if function is os.system else f"open({str(mark)!r}, 'w')"
    content = pickle.dumps({"x": Malicious(function, argument)}, protocol=protocol)
    with pytest.raises(DataError, match=r"bad.pt: its list of variables cannot be read .UnpicklingError"):
        read_field(archive(tmp_path / "bad.pt", content), "x")
    assert not mark.exists()


STORAGE = object()


def tensor_pickle(count: int, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> bytes:
    class Pickler(pickle._Pickler):
        def persistent_id(self, value: object) -> object:
            return ("storage", torch.FloatStorage, "0", "cpu", count) if value is STORAGE else None

    file = io.BytesIO()
    arguments: tuple[object, ...] = (STORAGE, offset, shape, strides, False, {})
    Pickler(file, protocol=2).dump({"x": Malicious(torch._utils._rebuild_tensor_v2, *arguments)})
    return file.getvalue()


def test_tensor_that_points_outside_of_its_values_is_refused(tmp_path: Path) -> None:
    good = archive(tmp_path / "good.pt", tensor_pickle(16, 0, (4, 4), (4, 1)))
    assert read_field(good, "x").shape == (4, 4)
    for offset, shape, strides in ((0, (4, 5), (4, 1)), (1, (4, 4), (4, 1)), (0, (2, 2), (-4, 1)), (-1, (2,), (1,))):
        bad = archive(tmp_path / "bad.pt", tensor_pickle(16, offset, shape, strides))
        with pytest.raises(DataError, match="lies outside of its values"):
            read_field(bad, "x")


def test_what_is_not_a_dictionary_of_tensors_is_refused(tmp_path: Path) -> None:
    torch.save([torch.ones(2)], tmp_path / "list.pt")
    with pytest.raises(DataError, match="expected a dictionary of tensors, found list"):
        read_field(tmp_path / "list.pt", "x")
    torch.save({"x": torch.ones(2, dtype=torch.bfloat16)}, tmp_path / "half.pt")
    with pytest.raises(DataError, match=r"holds BFloat16 numbers: save it as float32"):
        read_field(tmp_path / "half.pt", "x")
    torch.save({"x": torch.ones(2)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(DataError, match=r"older than torch 1.6"):
        read_field(tmp_path / "old.pt", "x")
    archive(tmp_path / "long.pt", bytes(2 << 20))
    with pytest.raises(DataError, match="no dictionary of a few tensors"):
        read_field(tmp_path / "long.pt", "x")


def test_torch_is_not_imported(tmp_path: Path) -> None:
    torch.save({"x": torch.ones(2, 3)}, tmp_path / "data.pt")
    program = (
        "import sys; from pathlib import Path; from geomano_hpc.data_prep.readers import open_variable;"
        f"((_, values),) = open_variable(Path({str(tmp_path / 'data.pt')!r}), 'x').blocks();"
        "assert values.sum() == 6; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
