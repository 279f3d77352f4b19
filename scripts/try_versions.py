"""Runs the core tests with older and newer releases of PyTorch and transformers, each in an environment of its own.

``python -m scripts.try_versions [NAME ...]`` makes ``.venv-versions/<name>`` (about 1 GB each), installs, runs the
tests of the training side, and prints a table. An environment that is there is used again; ``--fresh`` makes it anew.

PyTorch for the CPU is found as :mod:`scripts.install_torch` finds it. Where PyTorch's own index can't be reached, an
older release is to be had from PyPI only, with 5 GB of CUDA libraries that are of no use here; ``--cuda`` allows that.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOME = ROOT / ".venv-versions"
TESTS = (
    "tests/training/test_attach.py",
    "tests/training/test_callback.py",
    "tests/training/test_contract.py",
    "tests/training/test_guard.py",
    "tests/training/test_odd_setups.py",
    "tests/training/test_ranks.py",
    "tests/training/test_signals.py",
    "tests/matrix/test_losses.py",
    "tests/matrix/test_models.py",
    "tests/matrix/test_ranks.py",
)
TOOLS = ("hypothesis", "ipython>=8.0", "pytest>=8.3", "pytest-timeout", "pytest-xdist")
OLDEST_TORCH, ANY_TORCH = "torch==2.4.*", "torch>=2.4"


@dataclass(frozen=True)
class Combination:
    """What is installed together.

    Attributes:
        name: Of the environment.
        torch: Requirement for PyTorch.
        requirements: The others, of the same time.
    """

    name: str
    torch: str
    requirements: tuple[str, ...]


COMBINATIONS = (
    Combination("transformers-4.46", ANY_TORCH, ("transformers==4.46.*", "accelerate==1.1.*")),
    Combination("transformers-4.57", ANY_TORCH, ("transformers==4.57.*", "accelerate==1.11.*")),
    Combination("newest", ANY_TORCH, ("transformers", "accelerate")),
    # torch 2.4 was compiled before numpy 2.3, whose arrays it can't take.
    Combination("torch-2.4", OLDEST_TORCH, ("transformers==4.46.*", "accelerate==1.1.*", "numpy<2.3")),
)


def main(arguments: Sequence[str]) -> int:
    """Returns the number of combinations that failed."""
    names = [argument for argument in arguments if not argument.startswith("-")]
    rows: list[tuple[str, str, str]] = []
    for combination in COMBINATIONS:
        if names and combination.name not in names:
            continue
        say(f"== {combination.name}")
        python, problem = prepare(combination, fresh="--fresh" in arguments, cuda="--cuda" in arguments)
        rows.append((combination.name, versions(python), problem or run_tests(python)))
    width = max(len(installed) for _, installed, _ in rows)
    say("")
    for name, installed, result in rows:
        say(f"{name:18} {installed:{width}}  {result}")
    return sum("passed" not in result or "failed" in result or "error" in result for _, _, result in rows)


def prepare(combination: Combination, *, fresh: bool, cuda: bool) -> tuple[Path, str]:
    """Makes the environment of a combination.

    Returns:
        Its Python, and what went wrong, empty when nothing did.
    """
    folder = HOME / combination.name
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    stamp = folder / ".installed"
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    if stamp.is_file():
        return python, ""
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    if call(python, "-m", "scripts.install_torch", combination.torch, quiet=cuda):
        if not cuda:
            return python, f"{combination.torch} for the CPU can't be had here; --cuda allows PyPI's, of 5 GB"
        if call(python, "-m", "pip", "install", "--quiet", combination.torch):
            return python, f"{combination.torch} can't be had here"
    # PyTorch may not be exchanged for a newer one by what follows.
    pinned = subprocess.run(
        # Not torch.__version__: PyPI's own build calls itself 2.4.1+cu121, and there is no such release.
        [python, "-c", "from importlib.metadata import version; print(f'torch=={version(\"torch\")}')"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    wanted = [pinned, *combination.requirements, *TOOLS, "msgspec>=0.19", "psutil>=5.9", "nvidia-ml-py>=12.535"]
    if call(python, "-m", "pip", "install", "--quiet", *wanted):
        return python, "could not be installed"
    stamp.touch()
    return python, ""


def run_tests(python: Path) -> str:
    """Runs the tests; returns pytest's last line."""
    began = time.monotonic()
    # Warnings of old releases about newer ones are not ours to mend.
    options = ["-q", "-W", "default", "--disable-warnings", "-p", "no:cacheprovider", "--show-capture=no", "--tb=short"]
    result = subprocess.run(
        [python, "-m", "pytest", *options, "-n", "2", "--dist", "loadfile", "-m", "not matrix_full", *TESTS],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},  # tiny models are quicker with one
    )
    lines = result.stdout.strip().splitlines()
    for line in lines if result.returncode else []:
        if re.match(r"(E  |FAILED|ERROR)", line):
            say(line)
    summary = re.sub(r" in .*", "", lines[-1].strip("= ")) if lines else "nothing was said"
    return f"{summary}, {time.monotonic() - began:.0f} s"


def versions(python: Path) -> str:
    """Returns what is installed."""
    code = (
        "import importlib.metadata as m\n"
        "names = ('torch', 'transformers', 'accelerate', 'numpy')\n"
        "installed = {d.name: d.version for d in m.distributions()}\n"
        "print(', '.join(f'{n} {installed[n]}' for n in names if n in installed))"
    )
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=False).stdout.strip()


def call(python: Path, *arguments: str, quiet: bool = False) -> int:
    """Runs a Python; returns its exit status."""
    output = subprocess.DEVNULL if quiet else None
    environment = {**os.environ, "PIP_QUIET": "1"}
    return subprocess.run(
        [python, *arguments], cwd=ROOT, check=False, stdout=output, stderr=output, env=environment
    ).returncode


def say(text: str) -> None:
    """Says a line."""
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
