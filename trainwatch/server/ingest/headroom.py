"""How much memory is left on a device, by the last readings of it."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any, Final

from trainwatch.server.store.points import Key

_OWN_USE: Final = frozenset(
    f"memory/{name}" for name in ("peak", "allocated", "reserved", "peak_reserved", "process_used", "resident")
)
"""What a process holds itself. Others' use and counters say nothing of how much is left, and a process tree counts the
pages that its workers share once for each."""


def headroom_rows(run: str, last: dict[Key, float]) -> list[dict[str, Any]]:
    """Returns what is last known of each device's use and capacity.

    Use is what the device or machine says of all its users; without that the most that is known of the rank's own.

    Args:
        run: The run's id.
        last: The newest value of every series of the ranks concerned.
    """
    readings: defaultdict[tuple[int, str], dict[str, float]] = defaultdict(dict)
    for key, value in last.items():
        if key.device and key.metric.startswith("memory/"):
            readings[key.rank, key.device][key.metric] = value
    rows = []
    for (rank, device), found in readings.items():
        used = memory_used(found)
        capacity = found.get("memory/capacity")
        if used is not None or capacity is not None:
            rows.append({"run": run, "rank": rank, "device": device, "capacity": capacity, "used": used})
    return rows


def memory_used(readings: dict[str, float]) -> float | None:
    """Returns the bytes in use on a device, from its last readings; None when nothing is known."""
    everybody = readings.get("memory/device_used")
    if everybody is not None:
        return everybody
    own = [value for name, value in readings.items() if name in _OWN_USE and math.isfinite(value)]
    return max(own, default=None)
