"""Growth of memory: a robust trend of what is held at the end of a step, and when it meets the limit.

What is held between steps (the *trough*) tells a leak from everything else. The peak of a step swings with the length
of its batch, an evaluation leaves a cache behind, an allocator grows in stairs: none of them makes the trough rise step
after step. So the points are folded into blocks, and only the lowest trough of a block counts.

A leak may take 40 steps or 40,000 to fill the memory, and may begin late. So there are blocks of 1, 2, 4, 8 … points,
and of each size the last dozen. The longest dozen that rises steadily is the one to trust; what a short one shows
within a tooth of a saw is flat in the lows of a longer one.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from typing import Final

import msgspec

BLOCKS: Final = 12
"""Blocks of each size that are looked at."""
HORIZON: Final = 4.0
"""How many times as far as it has seen a forecast may look."""

_WARM_UP: Final = 2
_LEVELS: Final = 20
_APART: Final = BLOCKS // 3
_RISING: Final = 0.75
# Two rises of eleven make 18 % of a straight line; in a staircase they are nearly all of it.
_TWO_STAIRS: Final = 0.5
# What slows down is warming up, or filling a cache.
_STILL: Final = 0.5
_BENT: Final = 1.3
_FLAT: Final = 0.25
_NEW: Final = 0.25
_BROKEN: Final = 0.25
_BROADEST: Final = 3.0

_Block = tuple[float, float, float, float]
"""Where its lowest trough lies and how low, where its highest peak lies and how high."""


class Trend(msgspec.Struct, frozen=True):
    """A steady growth of the trough.

    Attributes:
        since: Where the window begins that shows it; steps, or seconds of a series without steps.
        until: Where the window ends.
        rate: Bytes a step (or a second).
        slowest: Lower end of the rate's interval: of slopes over long distances, nine of ten are higher.
        fastest: Upper end.
        at_end: The trend's height at `until`.
        risen: By how much the trough has risen from `since` to `until`.
        reach: How far a step's peak rises over the trend: the median of the window's blocks.
        lowest_reach: The same, the lowest of them.
        highest_reach: The highest.
        to_come: How much more it will grow if it goes on to slow down as it did in the window; infinite when it does
            not slow down.
        bent: Whether it has become faster within the window: then a shorter one fits better.
        confidence: From 0 to 1: share of the blocks that rise, times how well the slopes agree.
    """

    since: float
    until: float
    rate: float
    slowest: float
    fastest: float
    at_end: float
    risen: float
    reach: float
    lowest_reach: float
    highest_reach: float
    to_come: float
    bent: bool
    confidence: float

    def height(self, at: float) -> float:
        """Returns the trend's height at a step."""
        return self.at_end + self.rate * (at - self.until)


class Forecast(msgspec.Struct, frozen=True):
    """When memory ends, if the growth goes on.

    Attributes:
        step: The step (or time) at which the peak will meet the limit.
        low: Early end of the interval.
        high: Late end.
        bytes_per_step: The growth, or bytes a second.
        confidence: From 0 to 1.
        based_on: What it rests on: first and last step of the window, and bytes grown within.
    """

    step: float
    low: float
    high: float
    bytes_per_step: float
    confidence: float
    based_on: tuple[float, float, float]


class _Level:
    """The last blocks of one size."""

    __slots__ = ("_trend", "blocks", "half", "is_higher", "is_judged", "top")

    def __init__(self) -> None:
        self.blocks: deque[_Block] = deque(maxlen=BLOCKS)
        self.half: _Block | None = None
        self.top = -math.inf
        self.is_higher = False
        self.is_judged = False
        self._trend: Trend | None = None

    def push(self, block: _Block) -> _Block | None:
        """Takes a block; returns the block of twice the size when one is complete."""
        blocks = self.blocks
        if len(blocks) == BLOCKS and blocks[0][1] > self.top:
            self.top = blocks[0][1]
        blocks.append(block)
        # Most of the time nothing grows, and these comparisons are all that a step costs.
        self.is_higher = block[1] > blocks[0][1] and block[1] > self.top and len(blocks) == BLOCKS
        self.is_judged = False
        half = self.half
        if half is None:
            self.half = block
            return None
        self.half = None
        low = half if half[1] <= block[1] else block
        high = half if half[3] >= block[3] else block
        return low[0], low[1], high[2], high[3]

    def trend(self) -> Trend | None:
        """Returns the growth that the blocks show; to look costs as much as some hundred steps, so it is done once."""
        if not self.is_higher:
            return None
        if not self.is_judged:
            self.is_judged = True
            self._trend = trend_of(list(self.blocks), self.top)
        return self._trend


def trend_of(blocks: list[_Block], top: float) -> Trend | None:
    """Looks whether blocks rise steadily.

    Args:
        blocks: In the order of their points.
        top: The highest low of all blocks before; where memory has been before and came back from is no news.
    """
    lows = [block[1] for block in blocks]
    risen = lows[-1] - lows[0]
    rises = [after - before for before, after in itertools.pairwise(lows)]
    rising = sum(rise > 0 for rise in rises) / len(rises)
    if rising < _RISING or lows[-1] - max(top, lows[0]) < _NEW * risen:
        return None
    first, second = sorted(rises)[-2:]
    if first + second > _TWO_STAIRS * risen:
        return None
    places = [block[0] for block in blocks]
    if places[-1] <= places[0]:
        return None
    slopes = sorted(
        (lows[j] - lows[i]) / (places[j] - places[i])
        for i in range(len(lows) - _APART)
        for j in range(i + _APART, len(lows))
        if places[j] > places[i]
    )
    rate = slopes[len(slopes) // 2]
    slowest, fastest = slopes[len(slopes) // 10], slopes[-1 - len(slopes) // 10]
    if not 0 < slowest <= rate <= fastest < math.inf:
        return None
    early = _slope(places, lows, 0, _APART)
    late = _slope(places, lows, -1 - _APART, -1)
    if late < _STILL * rate:
        return None
    heights = sorted(low - rate * (place - places[-1]) for low, place in zip(lows, places, strict=True))
    at_end = heights[len(heights) // 2]
    reaches = sorted(block[3] - at_end - rate * (block[2] - places[-1]) for block in blocks)
    peaks = [block[3] for block in blocks]
    if max(peaks[-_APART:]) - min(peaks[:_APART]) < _FLAT * risen:
        # What is kept takes from what a step needed anyway: the trough alone will meet the limit.
        reaches = [0.0] * len(reaches)
    return Trend(
        since=places[0],
        until=places[-1],
        rate=rate,
        slowest=slowest,
        fastest=fastest,
        at_end=at_end,
        risen=risen,
        reach=max(reaches[len(reaches) // 2], 0.0),
        lowest_reach=max(reaches[0], 0.0),
        highest_reach=max(reaches[-1], 0.0),
        to_come=_to_come(early, late, places[-1] - places[0]),
        bent=late > _BENT * rate,
        confidence=rising * (1 - (fastest - slowest) / (fastest + slowest)),
    )


def _slope(places: list[float], lows: list[float], begin: int, end: int) -> float:
    run = places[end] - places[begin]
    return (lows[end] - lows[begin]) / run if run > 0 else 0.0


def _to_come(early: float, late: float, seen: float) -> float:
    """Returns what an exponential saturation with these slopes at the ends of a window still has to grow."""
    if late >= early:
        return math.inf
    share = _APART / (BLOCKS - 1)
    # The two slopes are those of the middles of the window's first and last part; what counts is what comes after it.
    pace = seen * (1 - share) / math.log(early / late)
    return late * pace * math.exp(-share / 2 * seen / pace)


class Growth:
    """Follows the memory of one device as one rank uses it; takes a point in constant time on average.

    A step that repeats or goes back (a resumed run) begins anew. A value that is not finite is left out.

    Args:
        coarsest: How many points the smallest block has that counts; readings taken several times a second need more
            than one for each.
    """

    __slots__ = ("_coarsest", "_counted", "_levels", "_seen", "newest", "trough")

    def __init__(self, coarsest: int = 1) -> None:
        self._coarsest = coarsest
        self._levels: list[_Level] = []
        self._counted: list[_Level] = []
        self._seen = 0
        self.newest = -math.inf
        self.trough = math.nan

    def observe(self, step: float, trough: float, peak: float) -> None:
        """Takes the next step.

        Args:
            step: Its number, or a time in seconds.
            trough: Bytes held at its end.
            peak: Highest use within it; NaN when not known.
        """
        # A difference of two infinities is NaN, which is neither: all that is not a plain number ends here.
        if not (step - step == 0.0 and trough - trough == 0.0):
            return
        if step <= self.newest:
            self.clear()
        self.newest = step
        self.trough = trough
        self._seen += 1
        if self._seen <= _WARM_UP:
            return
        block: _Block | None = (step, trough, step, peak if peak > trough and peak < math.inf else trough)
        for level in self._levels:
            block = level.push(block)  # type: ignore[arg-type]
            if block is None:
                return
        if block is not None and len(self._levels) < _LEVELS:
            self._levels.append(_Level())
            self._levels[-1].push(block)
            if 1 << (len(self._levels) - 1) >= self._coarsest:
                self._counted.insert(0, self._levels[-1])

    def clear(self) -> None:
        """Forgets all."""
        self._levels.clear()
        self._counted.clear()
        self._seen = 0
        self.newest = -math.inf
        self.trough = math.nan

    def trend(self) -> Trend | None:
        """Returns the growth that goes on, by the longest window that shows one; None when there is none."""
        bent: Trend | None = None
        for level in self._counted:
            if not level.is_higher:
                continue
            found = level.trend()
            # A fall since the window's last block has ended shows that memory does come back.
            if found is not None and self.trough >= found.height(self.newest) - _BROKEN * found.risen:
                if not found.bent:
                    return found
                bent = bent or found
        return bent

    def forecast(self, limit: float, trend: Trend | None = None) -> Forecast | None:
        """Says when the peak of a step will meet a limit.

        Args:
            limit: Bytes that are there.
            trend: What :meth:`trend` has returned, to spare asking again.

        Returns:
            The forecast; None when nothing grows steadily, when the end lies further ahead than what was seen allows,
            or when the interval is so broad that it says nothing.
        """
        trend = trend or self.trend()
        if trend is None or not math.isfinite(limit):
            return None
        now = self.newest
        left = limit - trend.height(now)
        ahead = (left - trend.reach) / trend.rate
        seen = trend.until - trend.since
        # A line runs on above what slows down: what is still to come is held against what there really is.
        if not ahead <= HORIZON * seen or not limit - self.trough - trend.reach <= trend.to_come:
            return None
        low = max((left - trend.highest_reach) / trend.fastest, 0.0)
        high = max((left - trend.lowest_reach) / trend.slowest, 0.0)
        ahead = min(max(ahead, low), high)
        if not high - low <= _BROADEST * max(ahead, seen) or not math.isfinite(now + high):
            return None
        return Forecast(
            step=now + ahead,
            low=now + low,
            high=now + high,
            bytes_per_step=trend.rate,
            confidence=trend.confidence,
            based_on=(trend.since, trend.until, trend.risen),
        )
