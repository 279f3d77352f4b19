"""What went wrong in TrainWatch itself: counted for the run's page, and said in the log without flooding it.

This is the only place of the agent that swallows an ``Exception``: a fault in one part (a rule, a probe) must not end
the others.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from trainwatch.agent.clock import SYSTEM, Clock
from trainwatch.events import TroubleCounted

REPEAT_SECONDS: Final = 60.0
LOG_BYTES: Final = 1024 * 1024


class Trouble:
    """Counts errors and losses. Safe to use from several threads.

    Args:
        clock: Times of the lines and of the event.
        descriptor: Where the log's lines go; the process's standard error by default.
    """

    def __init__(self, clock: Clock = SYSTEM, descriptor: int | None = None) -> None:
        self._clock = clock
        self._descriptor = descriptor
        self._lock = threading.Lock()  # the shipping thread counts too
        self._errors: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()
        self._message = ""
        self._changed = False
        self._said: dict[str, float] = {}

    @contextmanager
    def guard(self, place: str) -> Iterator[None]:
        """Counts any ``Exception`` that escapes the block, and goes on behind it.

        Args:
            place: Where in our code this is, for the count.
        """
        try:
            yield
        except Exception as error:
            self.error(place, error)

    def error(self, place: str, error: Exception) -> None:
        """Counts an error of ours."""
        message = f"{type(error).__name__}: {error}"
        with self._lock:
            self._errors[place] += 1
            self._message = f"{place}: {message}"
            self._changed = True
        self.say(f"error {place}", f"{message} (while {place})\n{''.join(traceback.format_tb(error.__traceback__))}")

    def lose(self, reason: str, count: int = 1) -> None:
        """Counts events that could not be kept or sent."""
        with self._lock:
            self._lost[reason] += count
            self._changed = True

    def take(self) -> TroubleCounted | None:
        """Returns the totals as an event if they have changed since the last call, else None."""
        with self._lock:
            if not self._changed:
                return None
            self._changed = False
            return TroubleCounted(
                time=self._clock.time(), errors=dict(self._errors), lost=dict(self._lost), message=self._message
            )

    def say(self, key: str, text: str) -> None:
        """Writes a line to the log, the same one at most once a minute.

        Args:
            key: Names the message; the text may vary.
            text: The line.
        """
        now = self._clock.monotonic()
        with self._lock:
            if now - self._said.get(key, -REPEAT_SECONDS) < REPEAT_SECONDS:
                return
            self._said[key] = now
        line = f"{self._clock.time():.3f} {text.rstrip()}\n".encode(errors="replace")
        try:
            descriptor = sys.stderr.fileno() if self._descriptor is None else self._descriptor
            if os.fstat(descriptor).st_size > LOG_BYTES:  # the log is a file of ours: begin anew
                os.ftruncate(descriptor, 0)
                os.lseek(descriptor, 0, os.SEEK_SET)
            os.write(descriptor, line)
        except (OSError, ValueError, AttributeError):
            return  # a full disk or a closed terminal is no reason to stop watching
