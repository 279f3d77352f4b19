"""When an agent's work is done."""

from __future__ import annotations

from enum import Enum
from typing import Final

LINGER_SECONDS: Final = 1.0
PATIENCE_SECONDS: Final = 9.0
# A training process makes its journal before it starts the agent; without one there is nothing to wait for.
NOTHING_SECONDS: Final = 30.0


class Verdict(Enum):
    """What to do next."""

    WATCH = "ranks are running"
    LINGER = "all have ended; wait for one that starts again, and ship the rest"
    DONE = "everything is shipped"
    LEAVE = "the server does not answer; the rest stays on disk"


class Ending:
    """Decides when to end.

    Args:
        now: Monotonic seconds.
    """

    def __init__(self, now: float) -> None:
        self._began = now
        self._over_since: float | None = None

    def judge(self, now: float, *, ranks: int, running: int, empty_at: float, progress_at: float) -> Verdict:
        """Decides.

        Args:
            now: Monotonic seconds.
            ranks: How many ranks were ever seen.
            running: How many of them have not ended.
            empty_at: When the journals were last found to be shipped to their ends.
            progress_at: When the server last took something.
        """
        if running or (not ranks and now - self._began < NOTHING_SECONDS):
            self._over_since = None
            return Verdict.WATCH
        if self._over_since is None:
            self._over_since = now
        # Whoever starts again within a moment finds this agent, still holding the lock.
        settled = self._over_since + LINGER_SECONDS
        if now < settled:
            return Verdict.LINGER
        if empty_at >= settled:
            return Verdict.DONE
        # As long as a backlog moves it is worth staying for.
        return Verdict.LEAVE if now - max(self._over_since, progress_at) >= PATIENCE_SECONDS else Verdict.LINGER
