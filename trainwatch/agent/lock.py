"""The lock that makes one process the shipper of a node's folder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class FolderLock:
    """An exclusive ``flock`` on ``agent.lock``; the kernel lets go of it however its holder ends.

    Args:
        node_directory: ``journals/RUN/NODE``.
    """

    def __init__(self, node_directory: Path) -> None:
        self._path = node_directory / "agent.lock"
        self._descriptor = -1

    def acquire(self) -> bool:
        """Tries to take the lock.

        Returns:
            Whether it is held now.

        Raises:
            OSError: The file cannot be made.
        """
        if self._descriptor >= 0:
            return True
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Lets go; safe to call twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
