"""How long tests wait, and how a promise in seconds is held against a process that got no processor.

What must happen is waited for up to :data:`PATIENCE`, so that only a hang fails. Where the product promises to be
quick, the time in which the machine ran others does not count: Linux tells it for each thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PATIENCE: Final = 100.0
"""Seconds; less than a test's own limit, and far more than anything takes on a busy machine."""


def starved(*pids: int) -> float:
    """Returns how long processes have been ready to run and were not, in seconds; 0 where the system does not tell.

    Args:
        pids: Their numbers; one that is gone counts nothing.
    """
    waited = 0
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            try:
                waited += int(thread.read_text().split()[1])
            except (OSError, IndexError):  # it has just ended
                continue
    return waited / 1e9


class Allowance:
    """Seconds that were lost to others while something was measured.

    Attributes:
        seconds: Known after the block.
    """

    def __init__(self) -> None:
        self.seconds = 0.0


@contextmanager
def allowing(*pids: int) -> Iterator[Allowance]:
    """Measures what this process and others lose to whoever else the machine runs.

    Args:
        pids: The others; they live to the end of the block.
    """
    found = Allowance()
    pids = (os.getpid(), *pids)
    before = starved(*pids)
    try:
        yield found
    finally:
        found.seconds = max(starved(*pids) - before, 0.0)
