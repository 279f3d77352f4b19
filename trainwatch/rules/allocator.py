"""What a caching allocator tells of itself: fragmentation, and caches given back to serve a request."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, ClassVar, Final

from trainwatch.events import Event, FindingRaised, OutOfMemorySeen, RunStarted, Severity, StepEnded
from trainwatch.forecast.limits import Limits
from trainwatch.rules.base import SEVERITIES, Count, Options, Rule, Share

FRAGMENTATION: Final = "fragmentation"
ALLOCATOR_RETRIES: Final = "allocator_retries"
OUT_OF_MEMORY: Final = "out_of_memory"

_MOST_RETRIES: Final = 1e12

_Place = tuple["int | None", str]


class FragmentationOptions(Options, frozen=True, kw_only=True):
    """Options of :class:`Fragmentation`.

    Attributes:
        unusable: Share of the reserved memory that lies in unused parts of split blocks.
        full: Share of the limit that is reserved; below it fragmentation harms nobody.
        steps: In how many steps in a row both hold.
    """

    unusable: Share = 0.2
    full: Share = 0.85
    steps: Count = 10


class Fragmentation(Rule[FragmentationOptions]):
    """The allocator has reserved nearly all there is, and much of it lies in pieces that serve no large request."""

    id = FRAGMENTATION
    listens: ClassVar[tuple[type[Event], ...]] = (StepEnded, RunStarted, OutOfMemorySeen)
    options_type = FragmentationOptions

    def __init__(self, options: FragmentationOptions) -> None:
        super().__init__(options)
        self._limits = Limits()
        self._in_a_row: dict[_Place, int] = {}
        self._said: set[_Place] = set()
        self._last: dict[_Place, tuple[float, float, float]] = {}

    def observe(self, event: Any, rank: int | None) -> Iterator[FindingRaised]:
        """See :class:`~trainwatch.rules.base.Rule`."""
        if type(event) is RunStarted:
            for place in [place for place in self._in_a_row if place[0] == rank]:
                del self._in_a_row[place]
                self._said.discard(place)
                yield self.cleared(event, rank=rank, key=place[1])
            self._limits.observe(event, rank)
            return
        if type(event) is OutOfMemorySeen:
            yield from self._ran_out(event, rank)
            return
        for device, values in event.devices.items():
            split = values.get("memory/inactive_split")
            if split is None:
                continue
            # What others hold is not known between samples; the card's own size tells enough here.
            self._limits.observe(event, rank)
            limit = self._limits.limit(rank, device)
            reserved = values.get("memory/peak_reserved", values.get("memory/reserved", 0.0))
            place = (rank, device)
            self._last[place] = split, reserved, values.get("memory/peak", 0.0)
            options = self.options
            if limit is None or not (reserved >= options.full * limit and split >= options.unusable * reserved):
                if place in self._in_a_row:
                    self._in_a_row[place] -= 1
                    if self._in_a_row[place] <= 0:
                        del self._in_a_row[place]
                        if place in self._said:
                            self._said.discard(place)
                            yield self.cleared(event, rank=rank, key=device)
                continue
            count = self._in_a_row[place] = min(self._in_a_row.get(place, 0) + 1, options.steps)
            if count >= options.steps and place not in self._said and reserved > 0:
                self._said.add(place)
                yield self.finding(
                    event, "info", rank=rank, key=device, evidence=_fragments(device, split, reserved, limit, 0.0)
                )

    def _ran_out(self, event: OutOfMemorySeen, rank: int | None) -> Iterator[FindingRaised]:
        """A request failed that the unused pieces together would have served."""
        split, reserved, _ = self._last.get((rank, event.device), (0.0, 0.0, 0.0))
        if event.requested > 0 and reserved > 0 and split >= max(event.requested, self.options.unusable * reserved):
            limit = self._limits.limit(rank, event.device) or reserved
            yield self.finding(
                event,
                "warning",
                rank=rank,
                key=event.device,
                evidence=_fragments(event.device, split, reserved, limit, float(event.requested)),
            )


def _fragments(device: str, split: float, reserved: float, limit: float, requested: float) -> dict[str, Any]:
    return {"device": device, "split": split, "reserved": reserved, "limit": limit, "requested": requested}


class RetriesOptions(Options, frozen=True, kw_only=True):
    """Options of :class:`AllocatorRetries`.

    Attributes:
        often: How many retries within `steps` steps make it a warning.
        steps: See `often`.
    """

    often: Count = 3
    steps: Count = 100


class AllocatorRetries(Rule[RetriesOptions]):
    """The allocator had to give its cache back to serve a request: the last thing that it tries."""

    id = ALLOCATOR_RETRIES
    listens: ClassVar[tuple[type[Event], ...]] = (StepEnded, RunStarted)
    options_type = RetriesOptions

    def __init__(self, options: RetriesOptions) -> None:
        super().__init__(options)
        self._total: dict[_Place, float] = {}
        self._recent: dict[_Place, deque[int]] = {}
        self._said: dict[_Place, Severity] = {}

    def observe(self, event: Any, rank: int | None) -> Iterator[FindingRaised]:
        """See :class:`~trainwatch.rules.base.Rule`."""
        if type(event) is RunStarted:
            for place in [place for place in self._total if place[0] == rank]:
                del self._total[place]
                self._recent.pop(place, None)
                if self._said.pop(place, None) is not None:
                    yield self.cleared(event, rank=rank, key=place[1])
            return
        for device, values in event.devices.items():
            place = (rank, device)
            total = values.get("memory/alloc_retries")
            if total is None or not 0 <= total < _MOST_RETRIES:
                yield from self._calm(event, rank, device)
                continue
            before = self._total.get(place)
            self._total[place] = total
            if before is None or total <= before:
                yield from self._calm(event, rank, device)
                continue
            recent = self._recent.setdefault(place, deque(maxlen=self.options.often))
            recent.append(event.step)
            often = len(recent) >= self.options.often and event.step - recent[0] < self.options.steps
            severity: Severity = "warning" if often else "info"
            said = self._said.get(place)
            if said is not None and SEVERITIES[severity] <= SEVERITIES[said]:
                continue
            self._said[place] = severity
            yield self.finding(
                event,
                severity,
                rank=rank,
                key=device,
                evidence={
                    "device": device,
                    "total": round(total),
                    "recent": len(recent),
                    "since": recent[0],
                },
            )

    def _calm(self, event: StepEnded, rank: int | None, device: str) -> Iterator[FindingRaised]:
        recent = self._recent.get((rank, device))
        if recent and event.step - recent[-1] > 2 * self.options.steps:
            recent.clear()
            if self._said.pop((rank, device), None) is not None:
                yield self.cleared(event, rank=rank, key=device)


class OutOfMemory(Rule[Options]):
    """An accelerator's allocator could not serve a request."""

    id = OUT_OF_MEMORY
    listens: ClassVar[tuple[type[Event], ...]] = (OutOfMemorySeen,)
    actions = ("notify",)

    def observe(self, event: OutOfMemorySeen, rank: int | None) -> Iterator[FindingRaised]:
        """See :class:`~trainwatch.rules.base.Rule`."""
        yield self.finding(
            event,
            "critical",
            rank=rank,
            key=event.device,
            evidence={
                "device": event.device,
                "phase": event.phase,
                "requested": event.requested,
                "allocated": event.allocated,
                "free": event.free,
            },
        )
