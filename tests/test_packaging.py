"""The folders at the root are one package: in the editable install, in a wheel, and for every tool that reads files."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("geomano_hpc", "data_prep", "kernels", "launch", "slurm")


def tracked_files() -> list[str]:
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in found if (ROOT / name).is_file()]


def copy_tree(to: Path) -> None:
    for name in tracked_files():
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, to / name)


def module_of(file: str) -> str:
    name = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return name if name.startswith("geomano_hpc") else f"geomano_hpc.{name}"


SOURCES = [name for name in tracked_files() if name.startswith(PARTS) and name.endswith(".py")]


def test_every_package_is_listed_in_pyproject() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        listed = tomllib.load(file)["tool"]["setuptools"]["packages"]
    assert sorted(listed) == sorted(module_of(name) for name in SOURCES if name.endswith("__init__.py"))


def test_dependencies_are_ranges_and_the_tested_set_is_exact() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        dependencies = tomllib.load(file)["project"]["dependencies"]
    assert all("==" not in dependency.split(";")[0] for dependency in dependencies)
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all("==" in line for line in lines)
    assert {"torch==2.13.0", "triton==3.7.1"} <= set(lines)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    copy_tree(folder / "source")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",  # the setuptools that is here, with no network
        "--wheel-dir",
        str(folder),
        str(folder / "source"),
    ]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return next(folder.glob("*.whl"))


@pytest.mark.slow
def test_wheel_holds_every_module_and_nothing_beside_the_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    modules = {module_of(name) for name in names if name.endswith(".py")}
    assert modules == {module_of(name) for name in SOURCES}
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"geomano_hpc"}
    expected = {
        "geomano_hpc/py.typed",
        "geomano_hpc/config/recipes/darcy.yaml",
        "geomano_hpc/launch/studies/demo.yaml",
        "geomano_hpc/report/page/page.css",
        "geomano_hpc/report/page/page.js",
        "geomano_hpc/slurm/profiles/a100.yaml",
        "geomano_hpc/kernels/cpu/source/scan_float32.cpp",
        "geomano_hpc/kernels/cpu/source/lanes.h",
    }
    assert expected <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.slow
def test_wheel_trains_in_another_environment_from_another_folder(wheel: Path, tmp_path: Path) -> None:
    """Only the package is installed there; its dependencies are lent by path, without the editable install."""
    environment = tmp_path / "venv"
    venv.create(environment, symlinks=True)
    python = environment / "bin" / "python"
    command = [sys.executable, "-m", "pip", f"--python={python}", "install", "--quiet", "--no-deps", str(wheel)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    site_packages = next((environment / "lib").glob("python*/site-packages"))
    (site_packages / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    where = (
        "import geomano_hpc.kernels, geomano_hpc.slurm; print(geomano_hpc.kernels.__file__, geomano_hpc.slurm.__file__)"
    )
    found = subprocess.run([python, "-c", where], cwd=folder, capture_output=True, text=True, check=True).stdout.split()
    assert all(file.startswith(str(site_packages)) for file in found)
    sizes = ["model.depth=1", "model.embedding=8", "training.epochs=1", "data.train_samples=8", "data.test_samples=4"]
    options = [word for size in sizes for word in ("--set", size)]
    command = [str(environment / "bin" / "geomano"), "train", "darcy_smoke", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "test rel-L2" in done.stdout
    assert (folder / "data" / "darcy_smoke.zarr").is_dir()
    assert list((folder / "runs" / "darcy_smoke").glob("*/result.json"))


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", f"VENV={sys.prefix}", *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_view_shows_every_module_where_it_is_imported_from() -> None:
    assert make("view").returncode == 0
    view = ROOT / "build" / "view"
    for name in SOURCES:
        module = module_of(name).replace(".", "/")
        assert (view / f"{module}.py").is_file() or (view / module / "__init__.py").is_file(), name


@pytest.mark.parametrize("part", ["data_prep", "kernels", "launch", "slurm", "geomano_hpc/training"])
@pytest.mark.slow
def test_type_checker_really_reads_every_part(part: str, tmp_path: Path) -> None:
    """A type error planted in a copy of the tree is found in each part."""
    copy_tree(tmp_path)
    planted = tmp_path / part / "planted.py"
    planted.write_text('"""Wrong on purpose."""\n\nx: int = "text"\n')
    subprocess.run(["make", "view"], cwd=tmp_path, check=True, capture_output=True)
    module = module_of(f"{part}/planted.py")
    command = [sys.executable, "-m", "mypy", "--config-file", str(tmp_path / "pyproject.toml"), "-m", module]
    done = subprocess.run(
        [*command, "--follow-imports=skip"],
        cwd=tmp_path / "build" / "view",
        capture_output=True,
        text=True,
        check=False,
    )
    assert "planted.py:3: error: Incompatible types in assignment" in done.stdout


def test_import_in_the_wrong_direction_is_found(tmp_path: Path) -> None:
    copy_tree(tmp_path)
    reference = tmp_path / "kernels" / "reference.py"
    reference.write_text(reference.read_text() + "\nfrom geomano_hpc.training import losses  # noqa\n")
    done = subprocess.run(
        ["make", "imports", f"VENV={sys.prefix}"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "Imports point one way BROKEN" in done.stdout
