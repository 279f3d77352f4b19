"""A machine with NVIDIA GPUs that isn't there: the stand-in library, and processes that see nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LIBRARY = "libnvidia-ml.so.1"
SOURCE = Path(__file__).with_name("standin_nvml.c")


def build(folder: Path) -> Path:
    """Compiles the stand-in, and returns the folder it lies in."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("needs a C compiler")
    subprocess.run([compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", folder / LIBRARY, SOURCE], check=True)
    return folder


def describe(path: Path, lines: str) -> None:
    """Makes the machine what `lines` say, at once."""
    scratch = path.with_suffix(".new")
    scratch.write_text(lines + "\n")
    scratch.replace(path)


class Machine:
    """A machine.

    Args:
        library: Where the stand-in lies.
        folder: Of this test.
    """

    def __init__(self, library: Path, folder: Path) -> None:
        self.world = folder / "world"
        self.environment = {**os.environ, "LD_LIBRARY_PATH": str(library), "STANDIN_NVML": str(self.world)}
        self.describe("")

    def describe(self, lines: str) -> None:
        describe(self.world, lines)

    def run(self, scenario: str, **arguments: Any) -> Any:
        """Runs a function of :mod:`tests.probes.inside` in a process on this machine; returns what it returns."""
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", "tests.probes.inside", scenario, json.dumps(arguments)],
            env=self.environment,
            cwd=Path(__file__).parent.parent.parent,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return json.loads(done.stdout)
