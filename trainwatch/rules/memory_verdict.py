"""What a run's memory does, as a note: after some steps, and again when it has become something else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final

import msgspec

from trainwatch.events import Event, FindingRaised, PhaseEntered, RunStarted, Sampled, StepEnded
from trainwatch.forecast.limits import Limits
from trainwatch.forecast.upcoming import Upcoming
from trainwatch.forecast.verdict import MemoryStory
from trainwatch.rules.base import Count, Options, Rule

MEMORY_VERDICT: Final = "memory_verdict"

_GROWS: Final = 4


class MemoryVerdictOptions(Options, frozen=True, kw_only=True):
    """Options of :class:`MemoryVerdict`.

    Attributes:
        first: Steps after which the first verdict is given; the next ones after four times as many each.
        every: Steps after which it is looked whether the verdict has changed.
    """

    first: Count = 50
    every: Count = 50


class MemoryVerdict(Rule[MemoryVerdictOptions]):
    """A word for what the memory of a run does, with the remedies that fit; a note, never a warning."""

    id = MEMORY_VERDICT
    listens: ClassVar[tuple[type[Event], ...]] = (RunStarted, StepEnded, Sampled, PhaseEntered)
    options_type = MemoryVerdictOptions
    actions = ("notify",)

    def __init__(self, options: MemoryVerdictOptions) -> None:
        super().__init__(options)
        self._limits = Limits()
        self._upcoming: dict[int | None, Upcoming] = {}
        self._stories: dict[tuple[int | None, str], MemoryStory] = {}
        self._others: dict[tuple[int | None, str], tuple[float, float]] = {}
        self._said: dict[tuple[int | None, str], tuple[str, int]] = {}
        self._last: dict[tuple[int | None, str], str] = {}

    def observe(self, event: Any, rank: int | None) -> Iterator[FindingRaised]:
        """See :class:`~trainwatch.rules.base.Rule`."""
        kind = type(event)
        self._limits.observe(event, rank)
        if kind is StepEnded:
            upcoming = self._upcoming.get(rank)
            if upcoming is not None:
                upcoming.saw(event.step, event.values)
            for device, values in event.devices.items():
                if "memory/peak" in values:
                    yield from self._step(event, rank, device, values)
        elif kind is Sampled:
            for device, values in event.devices.items():
                others, outside = values.get("memory/others_used"), values.get("memory/outside")
                if others is not None or outside is not None:
                    before = self._others.get((rank, device), (0.0, 0.0))
                    self._others[rank, device] = (
                        before[0] if others is None else others,
                        before[1] if outside is None else outside,
                    )
        elif kind is PhaseEntered:
            if event.left == "eval":
                for device, values in event.peak.items():
                    story = self._stories.get((rank, device))
                    if story is not None:
                        story.evaluated(values.get("memory/peak", 0.0))
        elif kind is RunStarted:
            self._start(event, rank)

    def _start(self, event: RunStarted, rank: int | None) -> None:
        of: dict[Any, Any]
        for of in (self._stories, self._others, self._said, self._last):
            for place in [place for place in of if place[0] == rank]:
                del of[place]
        self._upcoming[rank] = Upcoming(event.dataset, event.first_step)

    def _step(
        self, event: StepEnded, rank: int | None, device: str, values: dict[str, float]
    ) -> Iterator[FindingRaised]:
        place = (rank, device)
        story = self._stories.get(place)
        if story is None:
            story = self._stories[place] = MemoryStory(accelerator=device != "cpu")
        story.step(event.step, event.time, event.values, values)
        if story.steps < self.options.first or (story.steps - self.options.first) % self.options.every:
            return
        others, outside = self._others.get(place, (0.0, 0.0))
        limit, capacity = self._limits.limit(rank, device), self._limits.capacity(rank, device)
        verdict = story.verdict(limit, capacity, others, outside, self._upcoming.get(rank))
        said, again = self._said.get(place, ("", 0))
        last, self._last[place] = self._last.get(place, ""), verdict.kind
        # What has changed must have changed for good: two looks in a row.
        if said and (story.steps < again if verdict.kind == said else verdict.kind != last):
            return
        self._said[place] = (verdict.kind, _GROWS * story.steps)
        evidence = {
            "device": device,
            "kind": verdict.kind,
            "steps": story.steps,
            **verdict.figures,
            "remedies": [msgspec.to_builtins(remedy) for remedy in verdict.remedies],
        }
        yield self.finding(event, "info", rank=rank, key=device, evidence=evidence)
