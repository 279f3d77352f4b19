"""Values and durations as people read them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

_BYTES: Final = (("KiB", 2.0**10), ("MiB", 2.0**20), ("GiB", 2.0**30), ("TiB", 2.0**40))
_TICK_SECONDS: Final = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200),
)
_DAY: Final = 86400.0


@dataclass(frozen=True)
class Scale:
    """How the values of a unit are drawn: divided by `divisor` and written with `suffix`.

    Attributes:
        hover: d3 format of a single value.
        tick: d3 format of the tick labels, ``"e"`` for exponents; empty for Plotly's own choice.
    """

    divisor: float = 1.0
    suffix: str = ""
    hover: str = ".5~g"
    tick: str = ""

    @property
    def hover_text(self) -> str:
        """The part of a hover template that shows the value."""
        return f"%{{y:{self.hover}}}{self.suffix}"

    def axis(self) -> dict[str, Any]:
        """The y axis settings that write the ticks."""
        settings: dict[str, Any] = {"ticksuffix": self.suffix}
        if self.tick == "e":  # as exponents, but 0 as 0
            settings |= {"exponentformat": "e", "showexponent": "all", "minexponent": 1}
        elif self.tick:
            settings["tickformat"] = self.tick
        return settings


def scale_for(unit: str, metrics: tuple[str, ...], top: float) -> Scale:
    """Chooses how to draw values.

    Args:
        unit: The base unit.
        metrics: The chart's metrics.
        top: The largest value in view, in the base unit.
    """
    if unit == "bytes":
        name, divisor = next(((n, d) for n, d in reversed(_BYTES) if top >= d), _BYTES[0])
        return Scale(divisor, f" {name}", ",.4~g")
    if unit == "seconds":
        return Scale(0.001, " ms", ",.4~g") if top < 1 else Scale(1.0, " s", ",.4~g")
    if unit in ("tokens", "samples"):
        return Scale(1.0, "", ",.0f", "~s" if top >= 10_000 else ",")
    if unit == "ratio":
        return Scale(1.0, "", ".1%", ".0%")
    if metrics == ("train/learning_rate",):
        return Scale(1.0, "", ".4~g", "e")
    return Scale()


def bytes_text(value: float) -> str:
    """``25125978112.0`` as ``"23.4 GiB"``."""
    name, divisor = next(((n, d) for n, d in reversed(_BYTES) if value >= d), _BYTES[0])
    return f"{value / divisor:.3g} {name}" if value / divisor < 1000 else f"{value / divisor:.0f} {name}"


def duration_text(seconds: float) -> str:
    """A duration in its two largest units: ``"12m 30s"``, ``"2h 05m"``, ``"3d 6h"``; below a minute ``"4.25s"``."""
    if not math.isfinite(seconds):
        return "?"
    sign, seconds = ("-", -seconds) if seconds < 0 else ("", seconds)
    if seconds < 60:
        short = f"{seconds:.3f}".rstrip("0").rstrip(".")
        return f"{sign}{short}s" if short != "60" else f"{sign}1m"
    whole = round(seconds)
    if whole < 3600:
        return f"{sign}{whole // 60}m {whole % 60:02d}s" if whole % 60 else f"{sign}{whole // 60}m"
    if whole < _DAY:
        hours, minutes = whole // 3600, whole % 3600 // 60
        return f"{sign}{hours}h {minutes:02d}m" if minutes else f"{sign}{hours}h"
    days, hours = int(whole // _DAY), int(whole % _DAY // 3600)
    return f"{sign}{days}d {hours}h" if hours else f"{sign}{days}d"


def clock_text(seconds: float) -> str:
    """A duration to the second: ``"2h 05m 10s"``; below ten minutes with fractions only below one."""
    if not math.isfinite(seconds) or abs(seconds) < 60:
        return duration_text(round(seconds, 2) if math.isfinite(seconds) else seconds)
    sign, whole = ("-", round(-seconds)) if seconds < 0 else ("", round(seconds))
    days, rest = divmod(whole, int(_DAY))
    hours, rest = divmod(rest, 3600)
    text = f"{rest // 60:02d}m {rest % 60:02d}s" if days or hours else f"{rest // 60}m {rest % 60:02d}s"
    return sign + (f"{days}d " if days else "") + (f"{hours}h " if days or hours else "") + text


def duration_ticks(low: float, high: float, count: int = 7) -> tuple[list[float], list[str]]:
    """Round tick positions for durations, with their labels.

    Some lie beyond both ends, so that there are labels while the user pans.

    Args:
        low: Left end in seconds.
        high: Right end.
        count: How many to aim at between the ends.
    """
    span = high - low
    if not math.isfinite(span) or span <= 0:
        return [low], [duration_text(low)]
    wanted = span / count
    step = next((s for s in _TICK_SECONDS if s >= wanted), None)
    if step is None:
        days = wanted / _DAY
        magnitude = 10.0 ** math.floor(math.log10(max(days, 1.0)))
        step = _DAY * next(m * magnitude for m in (1, 2, 5, 10) if m * magnitude >= days)
    first = max(math.floor((low - span) / step), 0 if low >= 0 else -(10**9))
    last = math.ceil((high + span) / step)
    values = [number * step for number in range(first, last + 1)]
    return values, [duration_text(round(value, 6)) for value in values]


def log_ticks(low: float, high: float) -> tuple[list[float], list[str]]:
    """Round tick positions for a log axis, with their labels; some lie beyond both ends.

    Args:
        low: Smallest value, above 0.
        high: Largest value.
    """
    decades = math.log10(high / low)
    first, last = math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1
    every = max(1, round(decades / 6))
    leads: tuple[float, ...] = (1, 2, 5) if decades < 2.5 else (1,)
    if decades < 0.5:
        leads = (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)
    values = [lead * 10.0**power for power in range(first, last + every, every) for lead in leads]
    return values, [_power_text(value) for value in values]


def _power_text(value: float) -> str:
    power = round(math.log10(value))
    if -3 <= power <= 4 or not math.isclose(value, 10.0**power):
        return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
    return f"10<sup>{power}</sup>"
