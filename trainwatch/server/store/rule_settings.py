"""The settings of rules that a project has, besides those of its training scripts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from sqlalchemy import Connection, bindparam, select

from trainwatch.events import RuleSettings
from trainwatch.server.db import insert_for
from trainwatch.server.models import rule_settings, runs

_OF_RUNS: Final = (
    select(runs.c.id, rule_settings.c.rules)
    .join(rule_settings, rule_settings.c.project == runs.c.project)
    .where(runs.c.id.in_(bindparam("ids", expanding=True)))
)


def of_project(connection: Connection, project: str) -> tuple[RuleSettings, float | None]:
    """Returns a project's settings, and when they were changed; None when nobody ever set any."""
    row = connection.execute(select(rule_settings).where(rule_settings.c.project == project)).one_or_none()
    return ({}, None) if row is None else (row.rules, row.changed_at)


def of_runs(connection: Connection, ids: Collection[str]) -> dict[str, RuleSettings]:
    """Returns the settings that hold for each of these runs, of those whose project ever had any."""
    return {row.id: row.rules for row in connection.execute(_OF_RUNS, {"ids": list(ids)})}


def put(connection: Connection, project: str, rules: dict[str, Any], now: float) -> None:
    """Replaces a project's settings.

    Args:
        connection: Of a write transaction.
        project: The project.
        rules: All of its settings, checked.
        now: The server's clock.
    """
    values = {"rules": rules, "changed_at": now}
    statement = insert_for(connection.dialect.name, rule_settings).values(project=project, **values)
    connection.execute(statement.on_conflict_do_update(index_elements=["project"], set_=values))
