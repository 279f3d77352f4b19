"""TrainWatch as it is installed, compiled, in a folder of its own: this checkout's, or another revision's."""

from __future__ import annotations

import compileall
import io
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.e2e.world import ROOT

_PACKAGE = "trainwatch"


@contextmanager
def installed(revision: str = "") -> Iterator[Path]:
    """Makes a folder; what runs in it, by ``python -c`` or ``python -m``, imports the package from there.

    The benchmarks in it are those of this checkout, so that every revision is measured alike.

    Args:
        revision: As git knows it; empty for the files as they are now.

    Raises:
        subprocess.CalledProcessError: Git does not know it.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        if revision:
            command = ["git", "archive", revision, _PACKAGE]
            packed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
            with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
                archive.extractall(folder, filter="data")
        else:
            shutil.copytree(ROOT / _PACKAGE, folder / _PACKAGE, ignore=shutil.ignore_patterns("static", "__pycache__"))
        compileall.compile_dir(folder / _PACKAGE, quiet=1)
        for part in ("benchmarks", "tests"):
            (folder / part).symlink_to(ROOT / part)
        yield folder
