"""Throughput: a run that became slower than it was, and one that waits for its data."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec

from trainwatch.events import FindingRaised, RunStarted, Sampled, Severity, StepEnded
from trainwatch.rules.base import Count, Options, Rule, Seconds, Share, is_first
from trainwatch.rules.window import RunningMedian

WARM_UP_STEPS: Final = 20
"""Steps after each start that tell nothing of the usual pace: compilation, autotuning, caches, workers."""

_PER_LENGTH: Final = 64
_ENOUGH: Final = 20
_LENGTHS_PER_DOUBLING: Final = 2
_LONGEST: Final = 2.0**32


class ThroughputOptions(Options, frozen=True, kw_only=True):
    """Options of :class:`ThroughputDrop`.

    Attributes:
        steps: How many steps must be slow.
        share: Below which share of its usual throughput it is a note.
        bad: Below which share it is a warning.
    """

    hold: Seconds = msgspec.field(default=60.0, name="for")
    steps: Count = 50
    share: Share = 0.7
    bad: Share = 0.5


class _Paced(NamedTuple):
    """One step: what it is compared with, its rate, and that as a share of the usual one."""

    kind: int
    rate: float
    pace: float
    slow: bool
    very_slow: bool


class ThroughputDrop(Rule[ThroughputOptions]):
    """Tokens a second are clearly and lastingly below what they were.

    Long batches take longer for each token, so that a step is only compared with steps of about its own length. What
    is slow does not enter the history: it stays slow until it is fast again.
    """

    id = "throughput_drop"
    listens = (StepEnded, RunStarted)
    options_type = ThroughputOptions

    def __init__(self, options: ThroughputOptions) -> None:
        super().__init__(options)
        self._begin()

    def _begin(self) -> None:
        self._seen = 0
        self._usual: dict[int, RunningMedian] = {}
        self._recent: deque[_Paced] = deque()
        self._slow = self._very_slow = 0
        self._said: Severity | None = None

    def observe(self, event: Any, rank: int | None) -> Iterable[FindingRaised]:
        """See :class:`~trainwatch.rules.base.Rule`."""
        if not is_first(rank):
            return ()
        if type(event) is RunStarted:
            # Another machine, another pace.
            said = self._said
            self._begin()
            return () if said is None else (self.cleared(event),)
        values = event.values
        seconds = values.get("train/step_seconds", 0.0)
        waited = values.get("train/data_seconds", 0.0)
        if waited > 0.0:
            seconds += waited
        amount = values.get("train/padded_tokens")
        if amount is None:
            amount = values.get("train/samples", 0.0)
        if not (0.0 < seconds < math.inf and 0.0 < amount < math.inf):
            return ()
        self._seen += 1
        if self._seen <= WARM_UP_STEPS:
            return ()
        length = values.get("train/batch_length", 0.0)
        kind = int(_LENGTHS_PER_DOUBLING * math.log2(length)) if 1.0 <= length < _LONGEST else 0
        return self._judge(event, kind, amount / seconds)

    def _judge(self, event: StepEnded, kind: int, rate: float) -> Iterable[FindingRaised]:
        options, recent = self.options, self._recent
        usual = self._usual.get(kind)
        if usual is None:
            usual = self._usual[kind] = RunningMedian(_PER_LENGTH)
        if len(usual) < _ENOUGH:
            usual.add(rate)
            return ()
        pace = rate / usual.median
        newest = _Paced(kind, rate, pace, pace < options.share, pace < options.bad)
        recent.append(newest)
        self._slow += newest.slow
        self._very_slow += newest.very_slow
        while len(recent) > options.steps:
            oldest = recent.popleft()
            self._slow -= oldest.slow
            self._very_slow -= oldest.very_slow
            # Only now, and only what was not slow: a drop must not become what is usual while it is looked at.
            if not oldest.slow:
                self._usual[oldest.kind].add(oldest.rate)
        if len(recent) < options.steps:
            return ()
        return self._tell(event)

    def _tell(self, event: StepEnded) -> Iterable[FindingRaised]:
        most = 0.8 * self.options.steps
        if self._slow < most:
            if self._said is not None and self._slow < 0.5 * self.options.steps:
                self._said = None
                return (self.cleared(event),)
            return ()
        severity: Severity = "warning" if self._very_slow >= most else "info"
        if self._said == severity or self._said == "warning":
            return ()
        self._said = severity
        paces = sorted(step.pace for step in self._recent)
        rates = sorted(step.rate for step in self._recent)
        pace, rate = paces[len(paces) // 2], rates[len(rates) // 2]
        evidence = {
            "share": pace,
            "rate": rate,
            "usual": rate / pace,
            "unit": "tokens" if "train/padded_tokens" in event.values else "samples",
            "steps": len(paces),
        }
        return (self.finding(event, severity, evidence=evidence),)


class DataBoundOptions(Options, frozen=True, kw_only=True):
    """Options of :class:`DataBound`.

    Attributes:
        steps: How many steps count.
        share: From which share of the time on, spent waiting for data, it is a note.
        bad: From which share on it is a warning.
        busy: A device that is busy for at least this share of the time is not kept waiting.
    """

    hold: Seconds = msgspec.field(default=30.0, name="for")
    steps: Count = 100
    share: Share = 0.3
    bad: Share = 0.6
    busy: Share = 0.9


class DataBound(Rule[DataBoundOptions]):
    """The training waits for its data for much of the time."""

    id = "data_bound"
    listens = (StepEnded, RunStarted, Sampled)
    options_type = DataBoundOptions
    actions = ("notify",)

    def __init__(self, options: DataBoundOptions) -> None:
        super().__init__(options)
        self._workers: int | None = None
        self._said: Severity | None = None
        self._begin()

    def _begin(self) -> None:
        self._seen = 0
        self._steps: deque[tuple[float, float]] = deque()
        self._waited = self._worked = 0.0
        self._busy: float | None = None

    def observe(self, event: Any, rank: int | None) -> Iterable[FindingRaised]:
        """See :class:`~trainwatch.rules.base.Rule`."""
        if not is_first(rank):
            return ()
        if type(event) is Sampled:
            self._look_at_device(event)
            return ()
        if type(event) is RunStarted:
            self._begin()
            workers = event.arguments.get("dataloader_num_workers")
            self._workers = workers if isinstance(workers, int) else None
            return ()
        values = event.values
        worked, waited = values.get("train/step_seconds", 0.0), values.get("train/data_seconds", -1.0)
        if not (0.0 < worked < math.inf and 0.0 <= waited < math.inf):
            return ()
        self._seen += 1
        if self._seen <= WARM_UP_STEPS:
            return ()
        steps = self._steps
        if steps:
            # Workers that start anew with each epoch cost one long wait. It counts, but alone it is no bottleneck;
            # and workers that deliver in bursts make one step in sixteen wait for all.
            waited = min(waited, 16 * self._worked / len(steps))
        steps.append((waited, worked))
        self._waited += waited
        self._worked += worked
        if len(steps) > self.options.steps:
            while len(steps) > self.options.steps:
                old_waited, old_worked = steps.popleft()
                self._waited -= old_waited
                self._worked -= old_worked
            return self._judge(event)
        return ()

    def _look_at_device(self, event: Sampled) -> None:
        if event.phase != "train":
            return
        for values in event.devices.values():
            share = values.get("device/utilization")
            if share is not None and 0.0 <= share <= 1.0:
                self._busy = share if self._busy is None else 0.98 * self._busy + 0.02 * share

    def _judge(self, event: StepEnded) -> Iterable[FindingRaised]:
        whole = self._waited + self._worked
        share = self._waited / whole if whole > 0 else 0.0
        options = self.options
        # The host runs ahead of an accelerator: one that is busy all the time does not wait, whatever the host does.
        hidden = self._busy is not None and self._busy >= options.busy
        if share < options.share or hidden:
            if self._said is not None and (hidden or share < 0.8 * options.share):
                self._said = None
                return (self.cleared(event),)
            return ()
        severity: Severity = "warning" if share >= options.bad else "info"
        if self._said == severity or self._said == "warning":
            return ()
        self._said = severity
        evidence = {
            "share": share,
            "waited": self._waited / len(self._steps),
            "worked": self._worked / len(self._steps),
            "steps": len(self._steps),
            "workers": self._workers,
        }
        return (self.finding(event, severity, evidence=evidence),)
