"""How long tests wait, and how a promise in seconds is held against a process that got no processor.

What must happen is waited for up to :data:`PATIENCE`, so that only a hang fails. Where the product promises to be
quick, the time in which the machine ran others does not count: Linux tells it for each thread.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil

PATIENCE: Final = 100.0
"""Seconds; less than a test's own limit, and far more than anything takes on a busy machine."""
_EVERY: Final = 0.02


def wait_for(condition: Callable[[], Any], seconds: float = PATIENCE) -> None:
    """Looks again and again until something is so.

    Raises:
        AssertionError: It did not come to be in time.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


class Timing:
    """How long something took.

    Attributes:
        lost: Seconds in which processes were ready to run and the machine ran others. Known after the block.
        took: Seconds without these. Known after the block.
    """

    def __init__(self) -> None:
        self.lost = self.took = 0.0


@contextmanager
def timing(*pids: int) -> Iterator[Timing]:
    """Measures how long a block takes.

    Args:
        pids: Processes besides this one that it depends on.
    """
    found, delays = Timing(), _Delays((os.getpid(), *pids))
    over = threading.Event()

    def look() -> None:
        while not over.wait(_EVERY):
            delays.read()

    looking = threading.Thread(target=look)
    looking.start()
    began = time.monotonic()
    try:
        yield found
    finally:
        passed = time.monotonic() - began
        over.set()
        looking.join()
        delays.read()
        found.lost = delays.seconds
        found.took = passed - found.lost


def seconds_to_end(process: subprocess.Popen[Any]) -> float:
    """Waits for a process to end, and returns how long that took, without what it and its children were starved.

    Its status stays to be asked for.
    """
    children = psutil.Process(process.pid).children(recursive=True)
    with timing(process.pid, *(child.pid for child in children)) as timed:
        wait_for(lambda: os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG))
    return timed.took


class _Delays:
    """How long threads were ready to run and did not. What ended meanwhile counts as far as it was seen."""

    def __init__(self, pids: tuple[int, ...]) -> None:
        self._pids = pids
        self._latest: dict[str, int] = {}
        self._before: dict[str, int] = {}
        self.read()
        self._before = dict(self._latest)

    def read(self) -> None:
        for pid in self._pids:
            for thread in Path(f"/proc/{pid}/task").glob("*"):
                try:
                    self._latest[thread.name] = int((thread / "schedstat").read_text().split()[1])
                except (OSError, IndexError):  # it has just ended, or this system does not tell
                    continue

    @property
    def seconds(self) -> float:
        return sum(waited - self._before.get(thread, 0) for thread, waited in self._latest.items()) / 1e9
