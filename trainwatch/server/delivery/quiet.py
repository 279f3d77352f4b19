"""Quiet hours: when only what is critical passes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, time, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError


def zone(name: str) -> ZoneInfo:
    """Returns a time zone.

    Raises:
        ValueError: There is none of that name.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"There is no time zone {name[:60]!r}; they are called like Europe/Berlin or UTC.") from None


def clock(text: str) -> time:
    """Reads a time of day, like 22:30.

    Raises:
        ValueError: It is none.
    """
    hours, colon, minutes = text.partition(":")
    if not (
        colon and text.isascii() and hours.isdigit() and minutes.isdigit() and len(hours) <= 2 and len(minutes) == 2
    ):
        raise ValueError(f"{text[:20]!r} is no time of day; write it like 22:30.")
    try:
        return time(int(hours), int(minutes))
    except ValueError:
        raise ValueError(f"{text[:20]!r} is no time of day; write it like 22:30.") from None


def quiet_until(hours: Mapping[str, Any], now: float) -> float | None:
    """Returns when the quiet hours end in which a moment lies; None when it lies in none.

    Args:
        hours: ``zone``, ``start`` and ``end``; nothing: never quiet. An end before the start is on the next day.
        now: Unix seconds.
    """
    if not hours:
        return None
    place = zone(str(hours["zone"]))
    start, end = clock(str(hours["start"])), clock(str(hours["end"]))
    here = datetime.fromtimestamp(now, place)
    for days in (-1, 0):
        day = here.date() + timedelta(days=days)
        last = day if start < end else day + timedelta(days=1)
        # By the wall clock there, so that a night in which the clock is changed begins and ends when people say so;
        # compared as Unix seconds, in which no hour is missing and none comes twice.
        begins = datetime.combine(day, start, place).astimezone(timezone.utc).timestamp()
        ends = datetime.combine(last, end, place).astimezone(timezone.utc).timestamp()
        if begins <= now < ends:
            return ends
    return None
