"""What the image does, by hand: the Dockerfile's own commands, as its user, with its environment, against a Postgres.

There need be no container engine for this. What it does not try is the engine itself, and the image that is built upon.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import site
import socket
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from sqlalchemy import create_engine, text

import trainwatch
from tests.postgres import temporary_postgres
from tests.server.shipping import RUN, batch, send, started, step

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT: Final = Path(trainwatch.__file__).parent.parent
DOCKERFILE: Final = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text("utf-8"))
RUNTIME: Final = DOCKERFILE.rpartition("\nFROM ")[2]
NOBODY: Final = 65534


def instruction(name: str) -> list[str]:
    return [line.partition(" ")[2] for line in RUNTIME.splitlines() if line.startswith(name + " ")]


def array(text: str) -> list[str]:
    found: list[str] = json.loads(text[text.index("[") :])
    return found


def test_the_image_is_small_and_does_not_run_as_root() -> None:
    assert DOCKERFILE.count("\nFROM ") == 2
    assert all("slim" in line for line in DOCKERFILE.splitlines() if line.startswith("FROM "))
    assert not re.search(r"apt-get|gcc|build-essential", DOCKERFILE)
    [user] = instruction("USER")
    assert int(user.partition(":")[0]) >= 1000
    assert instruction("HEALTHCHECK")
    assert instruction("VOLUME") == instruction("WORKDIR") == ["/data"]
    assert "set-me" not in DOCKERFILE


def test_the_context_holds_what_the_wheel_needs_and_no_secret() -> None:
    lines = (ROOT / ".dockerignore").read_text("utf-8").split("\n")
    kept = {line[1:] for line in lines if line.startswith("!")}
    assert "*" in lines
    assert kept == {"pyproject.toml", "hatch_build.py", "README.md", "CHANGELOG.md", "LICENSE", "trainwatch", "web"}
    assert all((ROOT / name).exists() for name in kept)


@pytest.fixture(scope="module")
def image() -> Iterator[Path]:
    """A folder that holds what the image would: a virtual environment with the wheel, and a place for data."""
    # Not pytest's own folder, into which only root can look.
    folder = Path(tempfile.mkdtemp(prefix="trainwatch-image-"))
    folder.chmod(0o755)
    try:
        context = folder / "context"
        context.mkdir()
        for name in (line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").split() if line[0] == "!"):
            source = ROOT / name
            ignored = shutil.ignore_patterns("node_modules", "__pycache__", "dist")
            if source.is_dir():
                shutil.copytree(source, context / name, ignore=ignored)
            else:
                shutil.copy2(source, context / name)
        build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir"]
        done = subprocess.run(
            [*build, str(folder / "wheels"), str(context)],
            env={**os.environ, "TRAINWATCH_WEB": "auto"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        venv.create(folder / "venv", with_pip=True)
        python = folder / "venv" / "bin" / "python"
        [wheel] = (folder / "wheels").glob("*.whl")
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel], check=True)
        # The other packages are those of this environment: fetching them anew would try nothing of ours.
        [packages] = (folder / "venv" / "lib").glob("python*/site-packages")
        others = [path for path in site.getsitepackages() if Path(path).is_dir()]
        (packages / "others.pth").write_text("\n".join(others) + "\n", "utf-8")
        data = folder / "data"
        data.mkdir()
        os.chown(data, NOBODY, NOBODY)
        yield folder
    finally:
        shutil.rmtree(folder)


class Container:
    """Runs commands as the image would."""

    def __init__(self, image: Path, **settings: str) -> None:
        self._image = image
        declared = dict(re.findall(r"(\w+)=(\S+)", " ".join(instruction("ENV"))))
        assert declared["TRAINWATCH_HOST"] == "0.0.0.0"
        self.environment = {
            **declared,
            "TRAINWATCH_HOME": str(image / "data"),
            "PATH": f"{image / 'venv' / 'bin'}:/usr/bin:/bin",
            **settings,
        }

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Starts a command as a user that may write nothing but the data."""
        return subprocess.Popen(
            [str(self._image / "venv" / "bin" / command[0]), *command[1:]],
            cwd=self._image / "data",
            env=self.environment,
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *command: str) -> tuple[int, str]:
        """Runs a command; returns its exit status, and what it said."""
        with self.start(*command) as child:
            out, err = child.communicate(timeout=120)
        return child.returncode, out + err


def until(done: Any, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_migrate_serve_probe_and_stop_as_the_image_does(image: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with temporary_postgres() as url:
        container = Container(
            image,
            TRAINWATCH_DATABASE=url.replace("postgresql+psycopg://", "postgresql://"),
            TRAINWATCH_TOKEN="correct-horse",
            TRAINWATCH_MIGRATE_ON_START="0",
            TRAINWATCH_PORT=str(port),
        )
        [command] = [array(line) for line in instruction("CMD")]
        [health] = [array(line.partition("CMD")[2]) for line in instruction("HEALTHCHECK")]
        ready = [*health[:-1], "ready"]
        assert container.run(*health)[0] == 1
        with container.start(*command) as server:
            try:
                until(lambda: container.run(*health)[0] == 0)
                status, said = container.run(*ready)
                assert status == 1
                assert "trainwatch db upgrade" in said
                status, said = container.run("trainwatch", "db", "upgrade", "--wait", "30")
                assert status == 0, said
                assert said.startswith("Brought the schema from none to ")
                status, said = container.run("trainwatch", "db", "upgrade")
                assert (status, "already" in said) == (0, True)
                until(lambda: container.run(*ready)[0] == 0)
                headers = {"authorization": "Bearer correct-horse"}
                with httpx2.Client(base_url=f"http://127.0.0.1:{port}", headers=headers) as client:
                    send(client, batch([started(), step(1)]))
                    assert client.get(f"/api/v1/runs/{RUN}").json()["step"] == 1
                    assert "<!doctype html>" in client.get("/").text.lower()
                server.send_signal(signal.SIGTERM)
                _, log = server.communicate(timeout=30)
            finally:
                server.kill()
        assert server.returncode in (0, -signal.SIGTERM)
        assert all(json.loads(line)["logger"] for line in log.splitlines())
        assert "correct-horse" not in log
        engine = create_engine(url)
        with engine.connect() as connection:
            assert connection.scalar(text("SELECT count(*) FROM runs")) == 1
        engine.dispose()


def test_a_migration_that_cannot_reach_its_database_says_so(image: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    container = Container(image, TRAINWATCH_DATABASE="postgresql://u:hunter2@127.0.0.1:1/x")
    status, said = container.run("trainwatch", "db", "upgrade", "--wait", "1")
    assert status == 1
    assert "cannot be used" in said
    assert "hunter2" not in said
    assert "Traceback" not in said
