"""What a person gets who installs from a clone, on a machine without Node. Fetches build tools and npm packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import trainwatch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(trainwatch.__file__).parent.parent


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree as git has it, with what is not committed yet: no dashboard, no node_modules."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listing.returncode:
        pytest.skip("this is no clone")
    copy = tmp_path_factory.mktemp("clone")
    for name in filter(None, listing.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    assert not (copy / "trainwatch" / "server" / "static").exists()
    return copy


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which no Node and no npm is found."""
    folder = tmp_path_factory.mktemp("path")
    for name in ("sh", "git", "env", "uname"):
        if found := shutil.which(name):
            (folder / name).symlink_to(found)
    plain = {name: value for name, value in os.environ.items() if name not in ("TRAINWATCH_WEB", "PYTHONPATH")}
    return {**plain, "PATH": str(folder)}


@pytest.fixture(scope="module")
def wheel(clone: Path, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that ``pip install .`` makes."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(folder), str(clone)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_the_package_the_dashboard_and_the_migrations_and_nothing_else(wheel: Path) -> None:
    names = names_in(wheel)
    assert "trainwatch/server/static/index.html" in names
    assert any(name.startswith("trainwatch/server/static/assets/") and name.endswith(".js") for name in names)
    assert "trainwatch/py.typed" in names
    assert any(name.startswith("trainwatch/migrations/versions/0001") for name in names)
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"trainwatch", f"trainwatch-{trainwatch.__version__}.dist-info"}
    in_source = {path.relative_to(ROOT).as_posix() for path in (ROOT / "trainwatch").rglob("*.py")}
    assert in_source <= names


def test_the_base_install_is_small_and_works_without_the_extras(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", str(wheel)], check=True)
    listing = subprocess.run(
        [python, "-m", "pip", "list", "--format", "freeze"], capture_output=True, text=True, check=True
    )
    packages = {line.partition("==")[0].lower() for line in listing.stdout.split()}
    assert packages - {"pip", "setuptools"} == {"trainwatch", "msgspec", "psutil", "nvidia-ml-py", "numpy"}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(tmp_path / "venv" / "bin" / "trainwatch"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)

    assert run("--version").stdout == f"trainwatch {trainwatch.__version__}\n"
    assert run("sync", "--home", str(tmp_path)).returncode == 0
    for command, extra in (("serve", "server"), ("demo", "all")):
        refused = run(command)
        assert refused.returncode == 2
        assert f"pip install 'trainwatch[{extra}]'" in refused.stderr


def test_a_second_build_needs_no_node(wheel: Path, clone: Path, environment: dict[str, str]) -> None:
    """`wheel` has built the dashboard in the clone."""
    code = "from hatchling.build import get_requires_for_build_wheel as w; print(w())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=clone, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_sdist_brings_its_dashboard_so_that_no_node_is_needed(
    wheel: Path, clone: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(command, cwd=clone, env=environment, capture_output=True, check=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    root = archive.with_name(archive.name.removesuffix(".tar.gz"))
    assert (root / "trainwatch" / "server" / "static" / "index.html").is_file()
    assert (root / "web" / "package-lock.json").is_file()
    assert not (root / "web" / "node_modules").exists()
    code = "from hatchling.build import get_requires_for_build_wheel as w; print(w())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=root, env={**environment, "TRAINWATCH_WEB": "require"}, capture_output=True, check=True)
    (rebuilt,) = tmp_path.glob("*.whl")
    assert names_in(rebuilt) == names_in(wheel)


def test_without_the_registry_the_failure_says_how_to_go_on(
    clone: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    copy = tmp_path / "clone"
    ignored = shutil.ignore_patterns("node_modules", "static")
    shutil.copytree(clone, copy, ignore=ignored)
    cut_off = {**environment, "npm_config_registry": "http://127.0.0.1:9", "npm_config_fetch_retries": "0"}
    cut_off |= {"npm_config_cache": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=copy, env=cut_off, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "set TRAINWATCH_WEB=skip and install again" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    done = subprocess.run(
        command, cwd=copy, env={**cut_off, "TRAINWATCH_WEB": "skip"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "no dashboard" in done.stdout + done.stderr
    (built,) = tmp_path.glob("*.whl")
    assert "trainwatch/server/static/index.html" not in names_in(built)
    assert "trainwatch/server/app.py" in names_in(built)
