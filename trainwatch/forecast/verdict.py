"""What a run's memory does, in one word, with what that rests on and the remedies that fit.

The word is the first of these that holds: a leak, another process, evaluation that accumulates, a padding sawtooth,
fragmentation, memory outside the allocator, warm-up, steady. None of them is said on less than was measured: a swing is
the padding's only as far as the fit explains it, and a remedy has a figure only where one follows from the fit.
"""

from __future__ import annotations

import math
from typing import Any, Final, Literal

import msgspec

from trainwatch.events import Values
from trainwatch.forecast.growth import Growth
from trainwatch.forecast.length import LengthFit
from trainwatch.forecast.remedies import Remedy, length_cap, smaller_batch
from trainwatch.forecast.upcoming import Upcoming, largest_micro_batch

Kind = Literal[
    "leak",
    "other_process",
    "eval_accumulation",
    "padding_sawtooth",
    "fragmentation",
    "outside_allocator",
    "warm_up",
    "steady",
]

_FIRST_STEPS: Final = 2
_EARLY: Final = 16

SWING: Final = 0.1
"""Swing of the peaks, as a share of the highest, from which on it is worth a word."""
_EXPLAINED: Final = 0.5
_GROWN: Final = 0.02
_SURE: Final = 0.5
_OTHERS: Final = 0.05
_EVAL: Final = 1.25
_FRAGMENTED: Final = 0.15
_OUTSIDE: Final = 0.25
_WARMED: Final = 0.05


class Verdict(msgspec.Struct, frozen=True):
    """What was found.

    Attributes:
        kind: The word.
        figures: What it rests on, under the names that the wording uses; bytes, steps, shares.
        remedies: What fits, the largest saving first.
    """

    kind: Kind
    figures: dict[str, Any]
    remedies: list[Remedy] = []


class MemoryStory:
    """Follows one device of one rank, with a state of fixed size.

    Args:
        accelerator: It has an allocator of the framework's.
    """

    def __init__(self, accelerator: bool) -> None:
        self.steps = 0
        self._accelerator = accelerator
        self._fit = LengthFit(floored=accelerator)
        self._growth = Growth()
        self._lowest, self._highest = math.inf, 0.0
        self._early: float = math.nan
        self._held = math.nan
        self._eval_peak = 0.0
        self._split = self._reserved_over = 0.0
        self._above = False
        self._crossings: list[float] = []  # first and last rise through the middle: steps and times
        self._rises = 0
        self._samples = 0.0
        self._tokens = self._padded = 0.0

    def step(self, step: int, time: float, values: Values, memory: Values) -> None:
        """Takes a step that is over.

        Args:
            step: Its number.
            time: Its end.
            values: The step's values.
            memory: Its memory on the device.
        """
        peak = memory.get("memory/peak", math.nan)
        held = memory.get("memory/allocated") or memory.get("memory/resident") or math.nan
        self.steps += 1
        if self.steps <= _FIRST_STEPS or not 0 < peak < math.inf:
            return
        self._growth.observe(step, held, peak)
        if held > 0:
            self._held = held
            if self.steps <= _EARLY:
                self._early = held if math.isnan(self._early) else min(self._early, held)
        batch = largest_micro_batch(values)
        if batch is not None:
            self._fit.add(batch, peak)
            parts = values.get("train/micro_batches", 1.0)
            samples = values.get("train/samples", 0.0)
            if 0 < samples < 1e9:
                self._samples = max(self._samples, samples / max(parts, 1.0))
            self._padded += values.get("train/padded_tokens", 0.0)
            self._tokens += values.get("train/tokens", 0.0)
        self._lowest, self._highest = min(self._lowest, peak), max(self._highest, peak)
        self._swing_through(step, time, peak)
        split = memory.get("memory/inactive_split")
        if split is not None:
            self._split += 0.05 * (split - self._split)
            over = memory.get("memory/peak_reserved", peak) - peak
            self._reserved_over += 0.05 * (over - self._reserved_over)

    def evaluated(self, peak: float) -> None:
        """Takes the peak of an evaluation."""
        if peak < math.inf:
            self._eval_peak = max(self._eval_peak, peak)

    def verdict(
        self, limit: float | None, capacity: float | None, others: float, outside: float, upcoming: Upcoming | None
    ) -> Verdict:
        """Says what the memory does.

        Args:
            limit: What the rank may use; None when that is not known.
            capacity: The device's memory, likewise.
            others: Bytes that other processes hold.
            outside: Bytes of this process outside the allocator.
            upcoming: What is known of the data.
        """
        whole = capacity or self._highest
        for look in (self._leak, self._others, self._evaluation, self._padding, self._fragments, self._besides):
            found = look(whole, limit, others, outside, upcoming)
            if found is not None:
                return found
        figures = {"held": self._held, "peak": self._highest}
        if self._held - self._early > _WARMED * self._held:
            return Verdict("warm_up", {**figures, "risen": self._held - self._early, "settled": True})
        return Verdict("steady", {**figures, "swing": self._highest - self._lowest})

    @property
    def swing(self) -> float:
        """From the lowest to the highest peak of a step, in bytes."""
        return max(self._highest - self._lowest, 0.0)

    # -- one look each -------------------------------------------------------------------------------------------

    def _leak(self, whole: float, limit: float | None, *_: Any) -> Verdict | None:
        trend = self._growth.trend()
        if trend is None or trend.confidence < _SURE or trend.risen < _GROWN * whole:
            return None
        forecast = None if limit is None else self._growth.forecast(limit, trend)
        figures = {
            "rate": trend.rate,
            "risen": trend.risen,
            "since": round(trend.since),
            "ends_at": None if forecast is None or not forecast.step < 1e18 else round(forecast.step),
        }
        return Verdict("leak", figures, [Remedy("find_leak", trend.rate)])

    def _others(self, whole: float, limit: float | None, others: float, *_: Any) -> Verdict | None:
        if not others > _OTHERS * whole or not self._accelerator:
            return None
        return Verdict("other_process", {"others": others, "share": others / whole}, [Remedy("free_device", others)])

    def _evaluation(self, *_: Any) -> Verdict | None:
        if not self._eval_peak > _EVAL * self._highest:
            return None
        more = self._eval_peak - self._highest
        remedy = Remedy("eval_accumulation_steps")
        return Verdict("eval_accumulation", {"eval_peak": self._eval_peak, "more": more}, [remedy])

    def _padding(
        self, whole: float, limit: float | None, others: float, outside: float, upcoming: Upcoming | None
    ) -> Verdict | None:
        share = self._fit.share
        if not self.swing > SWING * self._highest or not share >= _EXPLAINED:
            return None
        steps, seconds = self._period()
        padding = 1.0 - self._tokens / self._padded if 0 < self._tokens <= self._padded else None
        figures = {
            "swing": self.swing,
            "lowest": self._lowest,
            "highest": self._highest,
            "share": share,
            "padding": padding,
            "period_steps": steps,
            "period_seconds": seconds,
            "base": self._fit.base,
        }
        return Verdict("padding_sawtooth", figures, self._against_length(upcoming, padding))

    def _against_length(self, upcoming: Upcoming | None, padding: float | None) -> list[Remedy]:
        samples = round(self._samples)
        longest = self._fit.longest
        coming = None if upcoming is None else upcoming.longest_sample
        found: list[Remedy | None] = []
        if upcoming is not None and upcoming.cap_candidate is not None and samples:
            top = max(longest, float(coming or 0))
            found.append(length_cap(self._fit, samples, top, upcoming.cap_candidate, 0.01))
        found.append(smaller_batch(self._fit, samples, max(longest, float(coming or 0))))
        known = sorted((remedy for remedy in found if remedy is not None), key=lambda one: -(one.saves or 0.0))
        if padding is not None and padding >= SWING:
            # The longest batch stays what it is; it saves time, and makes the swing slow.
            known.append(Remedy("group_by_length", None, None, padding))
        known.append(Remedy("gradient_checkpointing"))
        return known

    def _fragments(self, whole: float, *_: Any) -> Verdict | None:
        lost = max(self._split, self._reserved_over)
        if not self._accelerator or not lost > _FRAGMENTED * whole:
            return None
        figures = {"split": self._split, "over": self._reserved_over, "share": lost / whole}
        return Verdict("fragmentation", figures, [Remedy("expandable_segments", None)])

    def _besides(
        self, whole: float, limit: float | None, others: float, outside: float, upcoming: Upcoming | None
    ) -> Verdict | None:
        if not self._accelerator or not outside > _OUTSIDE * whole:
            return None
        return Verdict("outside_allocator", {"outside": outside, "share": outside / whole})

    # -- the saw's teeth -----------------------------------------------------------------------------------------

    def _swing_through(self, step: int, time: float, peak: float) -> None:
        width = self._highest - self._lowest
        if width <= SWING * self._highest:
            return
        place = (peak - self._lowest) / width
        if self._above and place < 0.4:
            self._above = False
        elif not self._above and place > 0.6:
            self._above = True
            self._rises += 1
            now = [float(step), time]
            self._crossings = self._crossings[:2] + now if self._crossings else now

    def _period(self) -> tuple[float | None, float | None]:
        """Returns the mean distance between two teeth, in steps and in seconds."""
        if self._rises < 3 or len(self._crossings) < 4:
            return None, None
        first, begin, last, end = self._crossings
        if last <= first or end <= begin:
            return None, None
        return (last - first) / (self._rises - 1), (end - begin) / (self._rises - 1)
