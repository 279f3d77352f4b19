"""What is to be told of alerts, written in the transaction in which they change: both are committed, or neither."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

from sqlalchemy import Connection, Row, insert, select

from trainwatch import journal
from trainwatch.events import Severity
from trainwatch.rules.base import SEVERITIES
from trainwatch.server.db import wake_after_commit
from trainwatch.server.models import channels, deliveries, runs, silences

JOB: Final = "delivery"
"""The periodic job that sends."""

ChangeKind = Literal["fired", "raised", "resolved"]


@dataclass(frozen=True, slots=True)
class Change:
    """What became of an alert.

    Attributes:
        alert: The alert's id.
        kind: It fired, its severity rose, or it is over.
        rule: The rule's id.
        severity: The alert's; of one that is over, what it was before.
        rank: The rank concerned; None for the run as a whole.
        key: What else tells the alert from others of its rule.
        step: The last step concerned.
        first_step: The first one.
        time: When it changed, by the training machine's clock.
        parameters: The evidence; of an alert that is over, what it was before.
        silenced_until: The alert's.
    """

    alert: int
    kind: ChangeKind
    rule: str
    severity: Severity
    rank: int | None
    key: str
    step: int | None
    first_step: int | None
    time: float
    parameters: dict[str, Any]
    silenced_until: float | None


def enqueue(connection: Connection, run: str, changes: Sequence[Change], now: float) -> None:
    """Writes a delivery for every channel that wants to hear of a change; suppressed ones too, for the record.

    Args:
        connection: The write transaction in which the alerts change.
        run: The run's id.
        changes: What became of its alerts.
        now: The server's clock.
    """
    if not changes:
        return
    owner = connection.execute(select(runs.c.project, runs.c.name, runs.c.node).where(runs.c.id == run)).one_or_none()
    if owner is None or owner.node == journal.IMPORTED_NODE:  # what another tool recorded long ago is no news
        return
    listening = connection.execute(
        select(channels)
        .where(channels.c.project.in_(("", owner.project)), channels.c.enabled | (channels.c.disabled_reason != ""))
        .order_by(channels.c.id)
    ).all()
    if not listening:
        return
    quiet = connection.execute(
        select(silences).where(silences.c.project.in_(("", owner.project)), silences.c.until > now)
    ).all()
    told = _told(connection, [change.alert for change in changes if change.kind == "resolved"])
    rows = []
    for change in changes:
        silenced = _silenced(change, quiet, (run, owner.name), now)
        for channel in listening:
            if not _wants(channel, change, (channel.id, change.alert) in told):
                continue
            disabled = "" if channel.enabled else f"the channel is disabled: {channel.disabled_reason}"
            reason = silenced or disabled
            rows.append(
                {
                    "uuid": str(uuid.uuid4()),
                    "channel": channel.id,
                    "alert": change.alert,
                    "run": run,
                    "change": change.kind,
                    "severity": change.severity,
                    "content": _content(change),
                    "state": "suppressed" if reason else "waiting",
                    "reason": reason,
                    "created_at": now,
                    "due_at": now,
                    "done_at": now if reason else None,
                    "attempts": 0,
                    "lease": "",
                    "lease_until": 0.0,
                }
            )
    if rows:
        connection.execute(insert(deliveries), rows)
        wake_after_commit(connection, JOB)


def _content(change: Change) -> dict[str, Any]:
    names = ("rule", "rank", "key", "step", "first_step", "time", "parameters")
    return {name: getattr(change, name) for name in names}


def _wants(channel: Row[Any], change: Change, told: bool) -> bool:
    """Tells whether a channel is to hear of a change.

    Args:
        channel: Its row.
        change: The change.
        told: Whether it was told that the alert fires; of others nobody needs to hear that they are over.
    """
    if change.kind == "resolved":
        return told and bool(channel.send_resolved)
    if SEVERITIES[change.severity] < SEVERITIES[channel.least]:
        return False
    patterns = channel.rules.split()
    return not patterns or any(fnmatchcase(change.rule, pattern) for pattern in patterns)


def _told(connection: Connection, alerts: Iterable[int]) -> set[tuple[int, int]]:
    """Returns the channels and alerts of which the channel heard that the alert fires, and not yet that it is over."""
    wanted = list(alerts)
    if not wanted:
        return set()
    query = select(deliveries.c.channel, deliveries.c.alert, deliveries.c.change, deliveries.c.state)
    told: set[tuple[int, int]] = set()
    for row in connection.execute(query.where(deliveries.c.alert.in_(wanted)).order_by(deliveries.c.id)):
        if row.change == "resolved":
            told.discard((row.channel, row.alert))
        elif row.state != "suppressed":
            told.add((row.channel, row.alert))
    return told


def _silenced(change: Change, quiet: Sequence[Row[Any]], names: tuple[str, ...], now: float) -> str:
    """Returns why nobody wants to hear of a change; empty when somebody may."""
    if change.silenced_until is not None and change.silenced_until > now:
        return "the alert is silenced"
    for silence in quiet:
        rule_matches = not silence.rule or fnmatchcase(change.rule, silence.rule)
        if rule_matches and (not silence.run or any(fnmatchcase(name, silence.run) for name in names)):
            return "the project silenced it" + (f": {silence.reason}" if silence.reason else "")
    return ""
