"""The alerts of runs: what findings make of them, and who does not want to hear of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, insert, select, update

from trainwatch.events import FindingRaised
from trainwatch.rules.base import SEVERITIES
from trainwatch.server.models import NO_RANK, alerts
from trainwatch.server.store import outbox
from trainwatch.server.store.outbox import Change, ChangeKind

_STEP: Final = ("first_step", "last_step")
_STATES: Final = {"firing": 0, "pending": 1, "resolved": 3}
_SILENCED: Final = 2
_WORD: Final = "memory_verdict"
"""A word for every run, healthy ones too; it stands beside the memory chart, and is no news of its own."""
_Name = tuple[str, int, str]


def raise_alerts(
    connection: Connection,
    run: str,
    findings: Sequence[FindingRaised],
    *,
    by_time: Sequence[FindingRaised] = (),
    now: float,
    superseded_until: float = 0.0,
) -> None:
    """Adds findings to the run's alerts, one alert for each rule, rank and key, and what is to be told to the outbox.

    The newest finding gives an alert its state, severity and parameters; one that comes late only counts.

    Args:
        connection: Of a write transaction.
        run: The run's id.
        findings: What was found, in its order, and after all that is stored: their times tell nothing of that, as
            clocks are set back.
        by_time: What may be older than what is stored: there the times tell.
        now: The server's clock.
        superseded_until: Last sign of processes that were replaced since: what was wrong with them is over.
    """
    grouped: defaultdict[_Name, tuple[list[FindingRaised], list[FindingRaised]]] = defaultdict(lambda: ([], []))
    for place, some in enumerate((findings, by_time)):
        for finding in some:
            name = (finding.rule, NO_RANK if finding.rank is None else finding.rank, finding.key)
            grouped[name][place].append(finding)
    if not grouped:
        return
    rules = {rule for rule, _, _ in grouped}
    query = select(alerts).where(alerts.c.run == run, alerts.c.rule.in_(rules))
    known = {(row.rule, row.rank, row.key): row for row in connection.execute(query)}
    changes = [
        _raise(connection, run, name, *same, known.get(name), superseded_until) for name, same in grouped.items()
    ]
    outbox.enqueue(connection, run, [change for change in changes if change is not None], now)


def _raise(
    connection: Connection,
    run: str,
    name: _Name,
    in_order: list[FindingRaised],
    by_time: list[FindingRaised],
    before: Row[Any] | None,
    superseded_until: float,
) -> Change | None:
    same = in_order + by_time
    newest = in_order[-1] if in_order else max(enumerate(by_time), key=lambda item: (item[1].time, item[0]))[1]
    steps = [finding.step for finding in same if finding.step is not None]
    times = [finding.time for finding in same]
    count = sum(finding.state == "firing" for finding in same)
    if before is not None:
        steps += [step for step in (before.first_step, before.last_step) if step is not None]
        times += [before.first_at, before.last_at]
        count += before._mapping["count"]  # a row's own .count is a method
    changes: dict[str, Any] = {"count": count, "first_at": min(times), "last_at": max(times)}
    changes |= dict(zip(_STEP, (min(steps), max(steps)), strict=True)) if steps else dict.fromkeys(_STEP)
    if before is None or in_order or newest.time >= before.last_at:
        over = newest.state == "resolved" or newest.time <= superseded_until
        changes |= {
            "state": "resolved" if over else newest.state,
            "severity": newest.severity,
            "parameters": newest.parameters,
            "resolved_at": max(newest.time, superseded_until if newest.state != "resolved" else 0.0) if over else None,
        }
        if before is None or newest.state == "firing":
            changes["action"] = newest.action
    if before is None:
        rule, rank, key = name
        added = connection.execute(insert(alerts).values(run=run, rule=rule, rank=rank, key=key, **changes))
        number = added.inserted_primary_key[0] if added.inserted_primary_key else None
    else:
        number = before.id
        connection.execute(update(alerts).where(alerts.c.id == number).values(**changes))
    if number is None or name[0] == _WORD:
        return None
    return _news(name, number, before, changes, newest.time)


def _news(name: _Name, number: int, before: Row[Any] | None, changes: dict[str, Any], time: float) -> Change | None:
    """Returns what there is to tell of an alert that changed at some time; None for nothing."""
    old, new = before.state if before is not None else "", changes.get("state", "")
    if before is not None and old == "firing" and new == "resolved":
        return _change("resolved", before, time)
    if new != "firing":
        return None
    if before is not None and old == "firing" and SEVERITIES[changes["severity"]] <= SEVERITIES[before.severity]:
        return None
    rule, rank, key = name
    return Change(
        alert=number,
        kind="raised" if old == "firing" else "fired",
        rule=rule,
        severity=changes["severity"],
        rank=None if rank == NO_RANK else rank,
        key=key,
        step=changes["last_step"],
        first_step=changes["first_step"],
        time=time,
        parameters=changes["parameters"],
        silenced_until=None if before is None else before.silenced_until,
    )


def _change(kind: ChangeKind, row: Row[Any], time: float) -> Change:
    """Returns the change of an alert whose row says what it was before."""
    return Change(
        alert=row.id,
        kind=kind,
        rule=row.rule,
        severity=row.severity,
        rank=None if row.rank == NO_RANK else row.rank,
        key=row.key,
        step=row.last_step,
        first_step=row.first_step,
        time=time,
        parameters=row.parameters,
        silenced_until=row.silenced_until,
    )


def supersede(connection: Connection, run: str, until: float, *, now: float) -> None:
    """Closes the alerts about processes that were replaced by newer ones.

    Args:
        connection: Of a write transaction.
        run: The run's id.
        until: Last sign of the replaced processes.
        now: The server's clock.
    """
    over = (alerts.c.run == run, alerts.c.state != "resolved", alerts.c.last_at <= until)
    firing = connection.execute(select(alerts).where(*over, alerts.c.state == "firing", alerts.c.rule != _WORD)).all()
    connection.execute(update(alerts).where(*over).values(state="resolved", resolved_at=until))
    outbox.enqueue(connection, run, [_change("resolved", row, until) for row in firing], now)


def alerts_of(connection: Connection, run: str, now: float) -> list[Row[Any]]:
    """Returns the alerts: firing ones first, then pending, silenced and resolved ones; the worst and newest first."""
    rows = connection.execute(select(alerts).where(alerts.c.run == run)).all()
    return sorted(rows, key=lambda row: (_place(row, now), -SEVERITIES[row.severity], -row.last_at, -row.id))


def drop_pending(connection: Connection, run: str, time: float) -> None:
    """Closes what has not matched for long enough: the run is over, and it never will.

    Args:
        connection: Of a write transaction.
        run: The run's id.
        time: When it was over.
    """
    connection.execute(
        update(alerts)
        .where(alerts.c.run == run, alerts.c.state == "pending")
        .values(state="resolved", resolved_at=time)
    )


def open_of(connection: Connection, run: str, key: str) -> dict[tuple[str, int | None], FindingRaised]:
    """Returns the findings with a key that are not resolved, by rule and rank, as they were last reported."""
    query = select(alerts).where(alerts.c.run == run, alerts.c.key == key, alerts.c.state != "resolved")
    found = {}
    for row in connection.execute(query):
        rank = None if row.rank == NO_RANK else row.rank
        found[row.rule, rank] = FindingRaised(
            time=row.last_at,
            rule=row.rule,
            severity=row.severity,
            step=row.last_step,
            rank=rank,
            key=key,
            parameters=row.parameters,
        )
    return found


def is_silenced(alert: Row[Any], now: float) -> bool:
    """Tells whether nobody wants to hear of an alert.

    Args:
        alert: Its row.
        now: The server's clock.
    """
    return alert.silenced_until is not None and alert.silenced_until > now


def is_loud(alert: Row[Any], now: float) -> bool:
    """Tells whether an alert fires, is not silenced, and is more than the word that every run gets for its memory.

    Args:
        alert: Its row.
        now: The server's clock.
    """
    return alert.state == "firing" and alert.rule != _WORD and not is_silenced(alert, now)


def silence(connection: Connection, run: str, alert: int, until: float | None) -> bool:
    """Silences an alert, or makes it heard again.

    Args:
        connection: Of a write transaction.
        run: The run's id.
        alert: The alert's id.
        until: By the server's clock; infinite for ever, None to end it.

    Returns:
        Whether the run has such an alert.
    """
    where = (alerts.c.run == run, alerts.c.id == alert)
    return bool(connection.execute(update(alerts).where(*where).values(silenced_until=until)).rowcount)


def _place(row: Row[Any], now: float) -> int:
    return _SILENCED if row.state != "resolved" and is_silenced(row, now) else _STATES[row.state]
