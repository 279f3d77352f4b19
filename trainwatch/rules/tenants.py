"""Who else uses a device, and how unevenly the ranks of a run use theirs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final

from trainwatch.events import Event, FindingRaised, OtherProcess, RunStarted, Sampled, Severity, StepEnded
from trainwatch.forecast.limits import Limits
from trainwatch.rules.base import SEVERITIES, Count, Options, Rule, Share

MEMORY_IMBALANCE: Final = "memory_imbalance"
OTHER_PROCESSES: Final = "other_processes"

_NAMED: Final = 3

_Place = tuple["int | None", str]


class ImbalanceOptions(Options, frozen=True, kw_only=True):
    """Options of :class:`MemoryImbalance`.

    Attributes:
        differ: How much less the least rank needs than the one that needs most, as a share of the latter.
        full: Share of its limit that the fullest rank uses; below it nothing is lost by an imbalance.
        warn: The same, from which on it is a warning: one rank will run out while others have room.
        steps: How many steps of each rank are compared; the highest peak among them counts.
    """

    differ: Share = 0.25
    full: Share = 0.7
    warn: Share = 0.92
    steps: Count = 50


class MemoryImbalance(Rule[ImbalanceOptions]):
    """One rank uses much more memory than another, and will run out alone."""

    id = MEMORY_IMBALANCE
    listens: ClassVar[tuple[type[Event], ...]] = (StepEnded, RunStarted)
    options_type = ImbalanceOptions

    def __init__(self, options: ImbalanceOptions) -> None:
        super().__init__(options)
        self._limits = Limits()
        self._highest: dict[int, tuple[float, str]] = {}
        self._steps: dict[int, int] = {}
        self._settled: dict[int, tuple[float, str]] = {}
        self._said: Severity | None = None

    def observe(self, event: Any, rank: int | None) -> Iterator[FindingRaised]:
        """See :class:`~trainwatch.rules.base.Rule`."""
        if rank is None:
            return
        if type(event) is RunStarted:
            self._limits.observe(event, rank)
            self._highest.pop(rank, None)
            self._settled.pop(rank, None)
            self._steps[rank] = 0
            return
        count = self._steps[rank] = self._steps.get(rank, 0) + 1
        if len(self._steps) < 2:
            return
        highest = self._highest.get(rank, (0.0, ""))
        for device, values in event.devices.items():
            if "memory/capacity" in values:
                self._limits.observe(event, rank)
            peak = values.get("memory/peak", 0.0)
            if highest[0] < peak < float("inf") and (device != "cpu" or len(event.devices) == 1):
                highest = (peak, device)
        self._highest[rank] = highest
        if count % self.options.steps == 0:
            self._settled[rank] = self._highest.pop(rank)
            if len(self._settled) == len(self._steps):
                yield from self._compare(event)

    def _compare(self, event: StepEnded) -> Iterator[FindingRaised]:
        options = self.options
        most = max(self._settled, key=lambda one: self._settled[one][0])
        least = min(self._settled, key=lambda one: self._settled[one][0])
        (high, device), (low, _) = self._settled[most], self._settled[least]
        limit = self._limits.limit(most, device)
        if limit is None or high <= 0 or high - low < options.differ * high or high < options.full * limit:
            if self._said is not None:
                self._said = None
                yield self.cleared(event)
            return
        severity: Severity = "warning" if high >= options.warn * limit else "info"
        if self._said is not None and SEVERITIES[severity] <= SEVERITIES[self._said]:
            return
        self._said = severity
        yield self.finding(
            event,
            severity,
            evidence={
                "most": most,
                "least": least,
                "highest": high,
                "lowest": low,
                "device": device,
                "limit": limit,
                "ranks": len(self._settled),
            },
        )


class OthersOptions(Options, frozen=True, kw_only=True):
    """Options of :class:`OtherProcesses`.

    Attributes:
        note: Share of the device's memory that others hold from which on it is a note.
        full: Share of the device's memory in use from which on what others hold is a warning.
    """

    note: Share = 0.05
    full: Share = 0.9


class OtherProcesses(Rule[OthersOptions]):
    """Processes that do not belong to the run hold memory of its device."""

    id = OTHER_PROCESSES
    listens: ClassVar[tuple[type[Event], ...]] = (Sampled, StepEnded, RunStarted)
    options_type = OthersOptions
    actions = ("notify", "checkpoint", "halt")

    def __init__(self, options: OthersOptions) -> None:
        super().__init__(options)
        self._capacity: dict[_Place, float] = {}
        self._names: dict[_Place, list[OtherProcess]] = {}
        self._said: dict[_Place, tuple[Severity, float]] = {}

    def observe(self, event: Any, rank: int | None) -> Iterator[FindingRaised]:
        """See :class:`~trainwatch.rules.base.Rule`."""
        kind = type(event)
        if kind is StepEnded:
            for device, values in event.devices.items():
                if "memory/capacity" in values:
                    self._capacity[rank, device] = values["memory/capacity"]
            return
        if kind is RunStarted:
            for place in [place for place in self._said if place[0] == rank]:
                del self._said[place]
                yield self.cleared(event, rank=rank, key=place[1])
            return
        if event.others is not None:
            for device in event.devices:
                self._names[rank, device] = [other for other in event.others if other.device == device]
        for device, values in event.devices.items():
            if "memory/capacity" in values:
                self._capacity[rank, device] = values["memory/capacity"]
            others = values.get("memory/others_used")
            if others is not None:
                yield from self._judge(event, rank, device, others, values.get("memory/device_used", 0.0))

    def _judge(
        self, event: Sampled, rank: int | None, device: str, others: float, used: float
    ) -> Iterator[FindingRaised]:
        options, place = self.options, (rank, device)
        capacity = self._capacity.get(place, 0.0)
        said = self._said.get(place)
        if not (capacity > 0 and others >= options.note * capacity):
            if said is not None and others < options.note * capacity / 2:
                del self._said[place]
                yield self.cleared(event, rank=rank, step=event.step, key=device)
            return
        severity: Severity = "warning" if used >= options.full * capacity else "info"
        if said is not None:
            worse = SEVERITIES[severity] > SEVERITIES[said[0]]
            if not worse and others < said[1] + options.note * capacity:
                return
            severity = severity if worse else said[0]
        self._said[place] = (severity, others)
        known = sorted(self._names.get(place, []), key=lambda other: -other.used)[:_NAMED]
        yield self.finding(
            event,
            severity,
            rank=rank,
            step=event.step,
            key=device,
            evidence={
                "device": device,
                "others": others,
                "used": used,
                "capacity": capacity,
                "grown": others - said[1] if said is not None else 0.0,
                "processes": [f"{other.name or 'process'} ({other.pid})" for other in known],
            },
        )
