"""Which agent has the last word on an alert, so that no clock is needed to put its findings in order."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from trainwatch import journal
from trainwatch.events import FindingRaised
from trainwatch.server.store.records import Rank, Source


def has_last_word(
    finding: FindingRaised, source: Source, agents: Collection[tuple[str, str]], ranks: Mapping[int, Rank]
) -> bool:
    """Tells whether a finding is later than all that are stored, whatever its time says.

    The findings of one source come in the order in which they were made, also when somebody sets its machine's clock
    back. Only those of another one may be older: of an agent before, or on a disk that was away for a while, or on
    another node. So it is the newest agent of the node on which the finding's rank runs that needs no clock. Where
    names do not tell which one that is, this says no.

    Args:
        finding: What was found.
        source: Who says so.
        agents: Source and node of each agent of the run.
        ranks: The run's ranks.
    """
    if source.rank is not None:
        return False
    rank = None if finding.rank is None else ranks.get(finding.rank)
    if rank is None:
        if any(node != source.node for _, node in agents):
            return False
    elif rank.node != source.node:
        return False
    here = [journal.attempt_of_agent(name, node) for name, node in agents if node == source.node]
    # Each disk counts from zero: the same number twice is of two disks, or of two machines of the same name.
    return len(set(here)) == len(here) and journal.attempt_of_agent(source.source, source.node) == max(here)
