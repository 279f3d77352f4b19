"""What time it is, for a server that may be one of several."""

from __future__ import annotations

import time


class DatabaseClock:
    """The database's clock, as far as it is known between two looks at it.

    What one server writes down another one judges, such as when a run was heard: so there must be one clock. Between
    two looks the monotonic clock counts on, which jumps neither when somebody sets the machine's clock nor at all.
    """

    def __init__(self) -> None:
        self._ahead = time.time() - time.monotonic()

    def __call__(self) -> float:
        """Returns the time in Unix seconds."""
        return time.monotonic() + self._ahead

    def set(self, now: float, monotonic: float) -> None:
        """Sets the clock.

        Args:
            now: What the database said, in Unix seconds.
            monotonic: :func:`time.monotonic` when it said so.
        """
        self._ahead = now - monotonic
