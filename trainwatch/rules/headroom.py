"""Little memory is left: on a device that a rank uses, and on the machine or in the control group around it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final

from trainwatch.events import Event, FindingRaised, RunStarted, Sampled, Severity, StepEnded
from trainwatch.forecast.limits import Limits, MappedFiles
from trainwatch.rules.base import SEVERITIES, Options, Rule, Seconds, Share

MEMORY_HEADROOM: Final = "memory_headroom"
HOST_MEMORY: Final = "host_memory"

_MOST_KILLS: Final = 1e9
_LONGEST_QUIET: Final = 3600.0

_Place = tuple["int | None", str]


class HeadroomOptions(Options, frozen=True, kw_only=True):
    """Options of :class:`MemoryHeadroom`.

    Attributes:
        note: Share of the limit in use from which on it is a note.
        warn: Share from which on it is a warning.
        quiet: For how long use must stay below `note` before it counts as over, in seconds: the next long batch may
            be some steps away. Each time that it comes back after all, twice as long as before.
    """

    note: Share = 0.92
    warn: Share = 0.97
    quiet: Seconds = 60.0


class MemoryHeadroom(Rule[HeadroomOptions]):
    """The memory of a device is nearly used up.

    Where steps tell of it, the peak of a step counts: what a caching allocator keeps in reserve is no use. Where only
    samples do, use of the whole device does; then it is a note at most, because that includes such reserves.
    """

    id = MEMORY_HEADROOM
    listens: ClassVar[tuple[type[Event], ...]] = (StepEnded, Sampled, RunStarted)
    options_type = HeadroomOptions

    def __init__(self, options: HeadroomOptions) -> None:
        super().__init__(options)
        self._limits = Limits()
        self._said: dict[_Place, tuple[Severity, float]] = {}
        self._stepped: set[_Place] = set()
        self._quiet: dict[_Place, float] = {}
        self._files: dict[_Place, MappedFiles] = {}

    def observe(self, event: Any, rank: int | None) -> Iterator[FindingRaised]:
        """See :class:`~trainwatch.rules.base.Rule`."""
        kind = type(event)
        self._limits.observe(event, rank)
        if kind is StepEnded:
            for device, values in event.devices.items():
                used = values.get("memory/peak")
                if used is None:
                    used = values.get("memory/allocated")
                if used is None:
                    continue
                files = self._files.get((rank, device))
                if files is None:
                    files = self._files[rank, device] = MappedFiles()
                used -= files.grown(values.get("memory/mapped"))
                self._stepped.add((rank, device))
                limit = self._limits.limit(rank, device)
                if limit is not None:
                    yield from self._judge(event, rank, device, used, limit, by_step=True)
        elif kind is Sampled:
            for device, values in event.devices.items():
                used = values.get("memory/device_used")
                if used is None or device == "host" or (rank, device) in self._stepped:
                    continue
                limit = self._limits.capacity(rank, device)
                if limit is not None:
                    yield from self._judge(event, rank, device, used, limit, by_step=False)
        elif kind is RunStarted:
            for place in [place for place in self._said if place[0] == rank]:
                del self._said[place]
                yield self.cleared(event, rank=rank, key=place[1])

    def _judge(
        self, event: Any, rank: int | None, device: str, used: float, limit: float, *, by_step: bool
    ) -> Iterator[FindingRaised]:
        options, place = self.options, (rank, device)
        said = self._said.get(place)
        if not used >= options.note * limit:
            if said is not None and not 0 <= event.time - said[1] <= self._quiet.get(place, options.quiet):
                del self._said[place]
                # What comes back again and again is not over each time.
                self._quiet[place] = min(2 * self._quiet.get(place, options.quiet), _LONGEST_QUIET)
                yield self.cleared(event, rank=rank, key=device)
            return
        severity: Severity = "warning" if by_step and used >= options.warn * limit else "info"
        if limit <= 0 or (said is not None and SEVERITIES[severity] <= SEVERITIES[said[0]]):
            if said is not None:
                self._said[place] = (said[0], event.time)
            return
        self._said[place] = (severity, event.time)
        yield self.finding(
            event,
            severity,
            rank=rank,
            key=device,
            evidence={
                "device": device,
                "used": used,
                "limit": limit,
                "left": max(limit - used, 0.0),
                "by_step": by_step,
            },
        )


class HostOptions(Options, frozen=True, kw_only=True):
    """Options of :class:`HostMemory`.

    Attributes:
        note: Share of the machine's (or control group's) memory in use from which on it is a note.
        warn: Share from which on it is a warning.
        gap: By how much of it use must fall below `note` before it counts as over.
    """

    note: Share = 0.9
    warn: Share = 0.95
    gap: Share = 0.05


class HostMemory(Rule[HostOptions]):
    """The machine's memory, or that of the control group, is nearly used up, or the kernel has killed for it."""

    id = HOST_MEMORY
    listens: ClassVar[tuple[type[Event], ...]] = (Sampled,)
    options_type = HostOptions

    def __init__(self, options: HostOptions) -> None:
        super().__init__(options)
        self._capacity: dict[int | None, float] = {}
        self._kills: dict[int | None, float] = {}
        self._said: dict[int | None, Severity] = {}

    def renewed(self) -> HostMemory:
        """See :class:`~trainwatch.rules.base.Rule`."""
        new = HostMemory(self.options)
        # Of the machine, not of the processes; both are told seldom.
        new._capacity, new._kills = self._capacity, self._kills
        return new

    def observe(self, event: Sampled, rank: int | None) -> Iterator[FindingRaised]:
        """See :class:`~trainwatch.rules.base.Rule`."""
        values = event.devices.get("host")
        if values is None:
            return
        kills = values.get("host/oom_kills")
        if kills is not None and 0 <= kills < _MOST_KILLS:
            before = self._kills.get(rank)
            self._kills[rank] = kills
            if before is not None and kills > before:
                yield self.finding(
                    event,
                    "critical",
                    rank=rank,
                    step=event.step,
                    key="oom_kill",
                    evidence={"kills": round(kills - before), "total": round(kills)},
                )
        capacity = values.get("memory/capacity")
        if capacity is not None:
            self._capacity[rank] = capacity
        used, capacity = values.get("memory/device_used"), self._capacity.get(rank, 0.0)
        if used is None or not capacity > 0:
            return
        options, said = self.options, self._said.get(rank)
        if not used >= options.note * capacity:
            if said is not None and used < (options.note - options.gap) * capacity:
                del self._said[rank]
                yield self.cleared(event, rank=rank)
            return
        severity: Severity = "warning" if used >= options.warn * capacity else "info"
        if said is None or SEVERITIES[severity] > SEVERITIES[said]:
            self._said[rank] = severity
            yield self.finding(
                event,
                severity,
                rank=rank,
                evidence={"used": used, "limit": capacity, "left": max(capacity - used, 0.0)},
            )
