"""Back-tests: what the rules would have said of a run that is over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from trainwatch.events import AnyEvent, FindingRaised, ProcessGone, RunEnded
from trainwatch.rules.base import Rule
from trainwatch.rules.engine import Engine, Guard


class Report(msgspec.Struct, frozen=True):
    """One thing that the rules would have said.

    Attributes:
        point: Index of the point at which they would have said it.
        seconds: Since the run's first event.
        finding: What they would have said.
    """

    point: int
    seconds: float
    finding: FindingRaised


class Replayed(msgspec.Struct, kw_only=True):
    """What came of a back-test of one run.

    Attributes:
        reports: What the rules would have said, in order.
        points: How many points there were.
        last_step: The highest step that was seen.
        seconds: From the first event to the last.
        outcome: How the run ended: ``"finished"``, ``"halted"``, ``"failed"``, ``"died"``; empty when not known.
        rejected: Rule id to why options that the run itself brings were not taken.
    """

    reports: list[Report]
    points: int = 0
    last_step: int = 0
    seconds: float = 0.0
    outcome: str = ""
    rejected: dict[str, str] = {}


def replay(
    events: Iterable[tuple[int, int | None, AnyEvent]],
    rules: tuple[type[Rule[Any]], ...],
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    only: frozenset[str] = frozenset(),
    guard: Guard | None = None,
) -> Replayed:
    """Shows a run to the rules again.

    Args:
        events: The run's events in the order in which they were seen: the point's index, the rank, and the event.
        rules: The rules to apply.
        settings: Options of rules, before those that the run itself brings.
        only: Rules whose findings count; all when empty.
        guard: As the engine takes it; without one, a fault of a rule is raised.

    Raises:
        trainwatch.rules.settings.SettingsError: `settings` do not fit the rules.
    """
    wanted = tuple(rule for rule in rules if not only or rule.id in only)
    engine = Engine(wanted, settings, guard) if guard else Engine(wanted, settings)
    result = Replayed(reports=[])
    begin: float | None = None
    for point, rank, event in events:
        if isinstance(event, FindingRaised):
            continue  # what was said then
        if begin is None:
            begin = event.time
        for finding in engine.observe(event, rank):
            result.reports.append(Report(point, finding.time - begin, finding))
        step = getattr(event, "step", None)
        if step is not None and step > result.last_step:
            result.last_step = step
        if isinstance(event, RunEnded):
            if result.outcome in ("", "finished"):  # of several ranks, the one that ended badly tells
                result.outcome = event.outcome
        elif isinstance(event, ProcessGone):
            result.outcome = "died"
        result.points = max(result.points, point + 1)
        result.seconds = max(result.seconds, event.time - begin)
    result.rejected = dict(engine.rejected)
    return result
