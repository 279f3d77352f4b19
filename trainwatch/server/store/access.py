"""Tokens and sessions. What comes in here is hashed already: no secret reaches the database."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, or_, select, update

from trainwatch.server.models import deleted_runs, runs, sessions, tokens

_TOUCH_SECONDS = 60.0
_MOST_SESSIONS = 100
"""Of one token, or of one person; the oldest end when there would be more."""


def add_token(connection: Connection, values: dict[str, Any]) -> None:
    """Stores a token; `values` are its columns."""
    connection.execute(insert(tokens).values(values))


def token(connection: Connection, name: str) -> Row[Any] | None:
    """Returns a token by its id; None when there is none."""
    return connection.execute(select(tokens).where(tokens.c.id == name)).one_or_none()


def listed_tokens(connection: Connection, project: str | None = None) -> list[Row[Any]]:
    """Returns tokens, newest first: of a project, or all for None."""
    query = select(tokens).order_by(tokens.c.created_at.desc(), tokens.c.id)
    if project is not None:
        query = query.where(tokens.c.project == project)
    return list(connection.execute(query))


def revoke_token(connection: Connection, name: str, now: float, project: str | None = None) -> bool:
    """Revokes a token and ends its sessions; once revoked it stays so.

    Args:
        connection: Of a write transaction.
        name: Its id.
        now: The server's clock.
        project: Only if it is of this project; None: of any.

    Returns:
        Whether there is such a token.
    """
    query = update(tokens).where(tokens.c.id == name)
    if project is not None:
        query = query.where(tokens.c.project == project)
    first = query.where(tokens.c.revoked_at.is_(None)).values(revoked_at=now)
    connection.execute(first)
    connection.execute(
        delete(sessions).where(
            sessions.c.token.in_(select(tokens.c.id).where(tokens.c.id == name, tokens.c.revoked_at.is_not(None)))
        )
    )
    found = token(connection, name)
    return found is not None and project in (None, found.project)


def touch_token(connection: Connection, name: str, now: float) -> None:
    """Notes that a token was used, if that is not on record for the last minute."""
    connection.execute(
        update(tokens)
        .where(tokens.c.id == name)
        .where(or_(tokens.c.last_used_at.is_(None), tokens.c.last_used_at <= now - _TOUCH_SECONDS))
        .values(last_used_at=now)
    )


def is_due(last_used_at: float | None, now: float) -> bool:
    """Tells whether a use is worth a write."""
    return last_used_at is None or now - last_used_at >= _TOUCH_SECONDS


def add_session(connection: Connection, values: dict[str, Any], now: float) -> None:
    """Stores a session, and forgets those that are over, or too many."""
    connection.execute(delete(sessions).where(sessions.c.expires_at <= now))
    connection.execute(insert(sessions).values(values))
    same = (
        sessions.c.token.is_not_distinct_from(values["token"]),
        sessions.c.origin == values["origin"],
        sessions.c.name == values["name"],
    )
    newest = select(sessions.c.id).where(*same).order_by(sessions.c.created_at.desc(), sessions.c.id)
    too_many = list(connection.scalars(newest.offset(_MOST_SESSIONS)))
    if too_many:
        connection.execute(delete(sessions).where(sessions.c.id.in_(too_many)))


def session(connection: Connection, digest: str) -> Row[Any] | None:
    """Returns the session whose cookie hashes to `digest`; None when there is none."""
    return connection.execute(select(sessions).where(sessions.c.digest == digest)).one_or_none()


def listed_sessions(connection: Connection, now: float) -> list[Row[Any]]:
    """Returns the sessions that are not over, newest first."""
    query = select(sessions).where(sessions.c.expires_at > now).order_by(sessions.c.created_at.desc(), sessions.c.id)
    return list(connection.execute(query))


def end_session(connection: Connection, name: str) -> bool:
    """Ends a session by its id; tells whether there was one."""
    return connection.execute(delete(sessions).where(sessions.c.id == name)).rowcount > 0


def end_session_of(connection: Connection, digest: str) -> None:
    """Ends the session whose cookie hashes to `digest`, if there is one."""
    connection.execute(delete(sessions).where(sessions.c.digest == digest))


def touch_session(connection: Connection, name: str, now: float) -> None:
    """Notes that a session was used, if that is not on record for the last minute."""
    connection.execute(
        update(sessions)
        .where(sessions.c.id == name)
        .where(or_(sessions.c.last_used_at.is_(None), sessions.c.last_used_at <= now - _TOUCH_SECONDS))
        .values(last_used_at=now)
    )


def projects_of(connection: Connection, ids: Collection[str]) -> dict[str, str]:
    """Returns the project of each of these runs, of those that are there."""
    rows = connection.execute(select(runs.c.id, runs.c.project).where(runs.c.id.in_(list(ids))))
    return {row.id: row.project for row in rows}


def owners_of(connection: Connection, ids: Collection[str]) -> dict[str, str]:
    """Returns the project of each of these runs, of those that are there or were deleted."""
    columns = (deleted_runs.c.run, deleted_runs.c.project)
    rows = connection.execute(select(*columns).where(deleted_runs.c.run.in_(list(ids))))
    return {row.run: row.project for row in rows} | projects_of(connection, ids)
