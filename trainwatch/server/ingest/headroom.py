"""How much memory is left on a device, by the last readings of it."""

from __future__ import annotations

import math
from typing import Any, Final

_OWN_USE: Final = frozenset(
    f"memory/{name}" for name in ("peak", "allocated", "reserved", "peak_reserved", "process_used", "resident")
)
"""What a process holds itself. Others' use and counters say nothing of how much is left, and a process tree counts the
pages that its workers share once for each."""


def headroom_row(run: str, rank: int, device: str, readings: dict[str, float]) -> dict[str, Any] | None:
    """Returns what is last known of a device's use and capacity; None when neither is.

    Use is what the device or machine says of all its users; without that the most that is known of the rank's own.

    Args:
        run: The run's id.
        rank: The rank, or :data:`~trainwatch.server.models.NO_RANK`.
        device: The device.
        readings: The newest value of each of its metrics.
    """
    used = memory_used(readings)
    capacity = readings.get("memory/capacity")
    if used is None and capacity is None:
        return None
    return {"run": run, "rank": rank, "device": device, "capacity": capacity, "used": used}


def memory_used(readings: dict[str, float]) -> float | None:
    """Returns the bytes in use on a device, from its last readings; None when nothing is known."""
    everybody = readings.get("memory/device_used")
    if everybody is not None:
        return everybody
    own = [value for name, value in readings.items() if name in _OWN_USE and math.isfinite(value)]
    return max(own, default=None)
