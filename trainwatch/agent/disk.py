"""Watches the disk that checkpoints go to, from a thread: a network file system may not answer for long, or never."""

from __future__ import annotations

import threading
from typing import Final

from trainwatch.events import Values
from trainwatch.probes import disk

DISK_SECONDS: Final = 10.0
DEVICE: Final = "disk"


class DiskWatch:
    """Reads the room on the disk of an output folder, and the size of the newest checkpoint.

    Args:
        every: Seconds between two readings.
    """

    def __init__(self, every: float = DISK_SECONDS) -> None:
        self._every = every
        self._due = 0.0
        self._measured = ""
        self._thread: threading.Thread | None = None
        self._result: Values | None = None

    def read(self, output_dir: str, checkpoint: str, now: float) -> Values:
        """Returns what was read since the last call, mostly nothing, and has the next reading taken when it is due.

        Args:
            output_dir: Where checkpoints go.
            checkpoint: The newest one; empty when there is none.
            now: Monotonic seconds.
        """
        if self._thread is not None:
            if self._thread.is_alive():
                return {}
            self._thread = None
            return self._result or {}
        new = checkpoint != self._measured
        if output_dir and (now >= self._due or new):
            self._due = now + self._every
            self._measured = checkpoint
            self._result = None
            # A daemon: a file system that hangs must not keep the agent from ending.
            self._thread = threading.Thread(
                target=self._look, args=(output_dir, checkpoint if new else ""), name="disk", daemon=True
            )
            self._thread.start()
        return {}

    def _look(self, output_dir: str, checkpoint: str) -> None:
        values: Values = {}
        found = disk.room(output_dir)
        if found is not None:
            values["disk/free"], values["disk/capacity"] = map(float, found)
        held = disk.size(checkpoint) if checkpoint else None
        if held:
            values["checkpoint/size"] = float(held)
        self._result = values
