"""The clock, passed to every part that decides by time so that tests need not wait."""

from __future__ import annotations

import time
from typing import Final, Protocol


class Clock(Protocol):
    """Both clocks of the machine, in seconds. The module :mod:`time` is one."""

    def time(self) -> float:
        """Unix time, for what is recorded."""
        ...

    def monotonic(self) -> float:
        """A clock that never jumps, for intervals."""
        ...


SYSTEM: Final[Clock] = time
