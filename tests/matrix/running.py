"""Plays the cells of a setup once for all tests about it: here, or in processes of their own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import transformers
from packaging.version import Version

from tests.matrix.faults import FAULTS, Fault
from tests.matrix.play import play
from tests.matrix.setup import HOWS, How, Setup

SECONDS = 240
_ROOT = Path(__file__).parents[2]


def cells(setup: Setup) -> list[tuple[Fault, How]]:
    """Returns what is to be tried in a setup."""
    return [(fault, how) for how in HOWS for fault in FAULTS if fault.name not in setup.skip]


def can_resume() -> bool:
    """Tells whether this transformers can load a checkpoint's state of the random generators with this torch."""
    return Version(transformers.__version__) >= Version("4.49") or Version(torch.__version__) < Version("2.6")


def play_all(setup: Setup, folder: Path) -> str:
    """Plays all cells of a setup.

    Returns:
        The end of what the processes said, if it took processes.
    """
    if setup.needs and find_spec(setup.needs) is None:
        pytest.skip(f"{setup.needs} is not installed")
    if setup.resume and not can_resume():
        pytest.skip("this transformers cannot resume with this torch: its own torch.load is refused")
    if setup.ranks or setup.alone:
        return _in_processes(setup, folder)
    with _as_it_was(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries, about what is not our business here
        for fault, how in cells(setup):
            play(setup, fault, how, folder)
    return ""


def _in_processes(setup: Setup, folder: Path) -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    wanted = [f"{fault.name}:{how}" for fault, how in cells(setup)]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nproc_per_node={setup.world}",
        f"--master_port={port}",
    ]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("ACCELERATE_", "TRAINWATCH_"))
    }
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(_ROOT), "DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(
        [*command, "-m", "tests.matrix.play", setup.name, str(folder), *wanted],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env=environment,
        cwd=_ROOT,
    )
    return f"exit status {result.returncode}\n{result.stdout[-2000:]}\n{result.stderr[-6000:]}"


@contextlib.contextmanager
def _as_it_was() -> Iterator[None]:
    """Gives the process back as it was: TrainingArguments leaves settings for accelerate in the environment.

    One thread is quicker for tiny models, above all where as many tests run as there are cores.
    """
    before, threads = dict(os.environ), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        os.environ.clear()
        os.environ.update(before)
