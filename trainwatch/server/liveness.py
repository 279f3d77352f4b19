"""What state a run is in, by what is known of its ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection

from trainwatch import journal
from trainwatch.events import AlertState, FindingRaised
from trainwatch.rules.ended import RUN_LOST
from trainwatch.rules.halting import COMMAND
from trainwatch.server.store import alerts, records
from trainwatch.server.store.records import Rank, Run

RUNNING: Final = "running"
LATE: Final = "late"
LOST: Final = "lost"
SILENT: Final = frozenset({LATE, LOST})
"""States that end by themselves when the run is heard again."""
_OVER: Final = frozenset({"finished", "halted", "failed", "died"})
# What tells most about a run whose ranks ended differently. A halt is deliberate and names where to resume from; after
# it the others may well be torn down. An exception names a cause; a death only that there was one.
_PRECEDENCE: Final = ("halted", "failed", "died", "finished")


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended, and the rank that tells it."""

    outcome: str
    rank: int
    time: float
    step: int
    rule: str
    parameters: dict[str, Any]
    error: str


def ending(
    ranks: Iterable[Rank], world_size: int, *, superseded_until: float = 0.0, silent: bool = False
) -> Ending | None:
    """Decides whether a run is over, and how it ended.

    Ranks of an earlier launch (the processes were started again) do not count.

    1. While ranks are still running, one that failed or died ends the run: training is collective, and nothing else
       can follow. One that halted or finished does not: the others are about to.
    2. When all ranks are over, the outcome that tells most counts: halted, failed, died, finished. But a death with the
       OOM killer at work comes before the failures, which then are only the others losing their peer.
    3. After a silence, the ranks that were seen are all that there are (a callback on rank 0 alone is legal), and one
       that halted speaks for those that fell silent.

    Args:
        ranks: All ranks that were seen.
        world_size: How many there should be.
        superseded_until: Last sign of processes that were replaced by newer ones of their rank.
        silent: Nothing was heard of the run for long.

    Returns:
        The ending, or None while the run goes on.
    """
    current = [rank for rank in ranks if rank.takes_part(superseded_until)]
    over = [rank for rank in current if rank.state in _OVER]
    outcomes = {rank.state for rank in over}
    complete = bool(current) and len(over) == len(current) and (silent or len(over) >= world_size)
    if not (complete or outcomes & {"failed", "died"} or (silent and "halted" in outcomes)):
        return None
    outcome = next(known for known in _PRECEDENCE if known in outcomes)
    tellers = [rank for rank in over if rank.state == outcome]
    killed = [rank for rank in over if rank.oom_kills and rank.state == "died"]
    if outcome == "failed" and killed:
        outcome, tellers = "died", killed
    # Of ranks that halted together the one with the bad value tells most, and one on another node than the command's
    # nothing; of those that failed, the first.
    first = min(
        tellers, key=lambda rank: (_is_vague(rank), _culprit(rank) != rank.rank, rank.ended_at or 0.0, rank.rank)
    )
    parameters = dict(first.parameters)
    if outcome == "halted" and not parameters.get("checkpoint"):
        saved = [rank.parameters["checkpoint"] for rank in tellers if rank.parameters.get("checkpoint")]
        parameters["checkpoint"] = saved[0] if saved else ""
    return Ending(
        outcome=outcome,
        rank=first.rank,
        time=max(rank.ended_at or 0.0 for rank in over),
        step=max(rank.step for rank in over) if outcome == "finished" else first.step,
        rule=first.reason,
        parameters=parameters,
        error=first.error,
    )


def _is_vague(rank: Rank) -> bool:
    return rank.reason == COMMAND and not rank.parameters.get("reason")


def _culprit(rank: Rank) -> int:
    """Returns the rank that caused a rank's halt: itself, unless its evidence names another."""
    named = rank.parameters.get("culprit")
    return named if isinstance(named, int) else rank.rank


def judge(run: Run, ranks: Iterable[Rank], *, silent: bool = False) -> Ending | None:
    """Decides with :func:`ending` whether this run is over."""
    return ending(ranks, run.world_size, superseded_until=run.superseded_until, silent=silent)


def settle(run: Run, found: Ending | None) -> bool:
    """Writes a decision into a run's record.

    Returns:
        Whether the run's state changed.
    """
    before = run.state
    if found is None:
        # What was imported does not run any more, also where its file does not say how it ended.
        run.state, run.ended_at, run.ending = LOST if run.node == journal.IMPORTED_NODE else RUNNING, None, {}
    else:
        run.state, run.ended_at = found.outcome, found.time
        run.ending = {
            "outcome": found.outcome,
            "rank": found.rank,
            "time": found.time,
            "step": found.step,
            "rule": found.rule,
            "parameters": found.parameters,
            "error": found.error,
        }
    return run.state != before


def tell_lost(connection: Connection, run: Run, *, now: float, silent_since: float, state: AlertState) -> None:
    """Raises the alert that a run is lost, with what was last known of it, or says that it is over.

    Args:
        connection: A transaction that holds the run's row lock, so that the state and the alert change together.
        run: The run.
        now: The server's clock.
        silent_since: When it was last heard before the silence.
        state: ``"firing"`` or ``"resolved"``.
    """
    known = records.last_known(connection, [run.id]).get(run.id, {}) if state == "firing" else {}
    parameters = {"seconds": round(max(0.0, now - silent_since), 1), **known}
    found = FindingRaised(
        time=now, rule=RUN_LOST, severity="warning", step=run.step, parameters=parameters, state=state
    )
    alerts.raise_alerts(connection, run.id, [found], now=now)
