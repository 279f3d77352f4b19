"""Evaluates the rules over a run's events, and keeps a restarted agent from finding the same things again."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from pathlib import Path

import msgspec

from trainwatch import events, journal
from trainwatch.agent.tail import find_sources
from trainwatch.agent.trouble import Trouble
from trainwatch.events import AnyEvent, FindingRaised, ProcessGone
from trainwatch.rules import RULES, Engine

FindingKey = tuple[str, str, str, str, int | None, int | None]


class Recorded(msgspec.Struct, frozen=True):
    """What earlier agents of the folder have already said.

    Attributes:
        findings: Those in their journals, oldest first.
        gone: (rank, process id) to the times at which they noted its end. In a container every training may have the
            same process id.
    """

    findings: defaultdict[FindingKey, deque[FindingRaised]]
    gone: defaultdict[tuple[int, int], list[float]]


def key(finding: FindingRaised) -> FindingKey:
    """What makes a finding the same one."""
    return finding.rule, finding.key, finding.state, finding.severity, finding.rank, finding.step


def already_recorded(node_directory: Path) -> Recorded:
    """Reads what earlier agents of the folder recorded.

    Raises:
        OSError: A journal cannot be read.
    """
    recorded = Recorded(defaultdict(deque), defaultdict(list))
    for source in find_sources(node_directory):
        if source.rank is not None:
            continue
        reader = journal.Reader(source.directory)
        while records := reader.read():
            for record in records:
                # Nearly all of an agent's events are samples; decoding them all would take long.
                if b"finding_raised" not in record.payload and b"process_gone" not in record.payload:
                    continue
                try:
                    event = events.decode(record.payload)
                except msgspec.MsgspecError:
                    continue
                if isinstance(event, FindingRaised):
                    recorded.findings[key(event)].append(event)
                elif isinstance(event, ProcessGone):
                    recorded.gone[event.rank, event.pid].append(event.time)
    return recorded


class Evaluator:
    """Feeds events to the rules.

    Args:
        trouble: Counts the errors of rules.
        recorded: Findings that are not to be raised again.
    """

    def __init__(self, trouble: Trouble, recorded: Mapping[FindingKey, deque[FindingRaised]]) -> None:
        self._engine = Engine(RULES, guard=trouble.guard)
        self._trouble = trouble
        self._recorded = recorded

    @property
    def rejected(self) -> Mapping[str, str]:
        """Rule id to why the options that an event brought for it were not taken."""
        return self._engine.rejected

    def observe(self, event: AnyEvent, rank: int | None) -> list[tuple[FindingRaised, bool]]:
        """Shows an event to the rules.

        Args:
            event: What happened.
            rank: The rank in whose journal it stands; None for an agent's.

        Returns:
            The findings, and whether each is new; one that is not comes as it was recorded.
        """
        if isinstance(event, FindingRaised):
            return []
        found: list[tuple[FindingRaised, bool]] = []
        with self._trouble.guard("evaluating rules"):
            for finding in self._engine.observe(event, rank):
                before = self._recorded.get(key(finding))
                found.append((before.popleft(), False) if before else (finding, True))
        return found
