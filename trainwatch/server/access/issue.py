"""Makes tokens: for the API and for the command line."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection

from trainwatch.server.access.principal import Scope, format_scopes
from trainwatch.server.access.tokens import new_token
from trainwatch.server.store import access as store

DAY_SECONDS = 24 * 3600.0


def issue(
    connection: Connection,
    *,
    name: str,
    project: str,
    scopes: Collection[Scope],
    days: float | None,
    by: str,
    now: float,
) -> tuple[str, str]:
    """Makes and stores a token.

    Args:
        connection: Of a write transaction.
        name: For people.
        project: The only project that it sees; empty: all.
        scopes: What it may do.
        days: Until it expires; None: it does not.
        by: Who makes it.
        now: The server's clock.

    Returns:
        Its id, and the token itself, which is nowhere else.
    """
    made = new_token()
    store.add_token(
        connection,
        {
            "id": made.id,
            "digest": made.digest,
            "name": name,
            "project": project,
            "scopes": format_scopes(scopes),
            "created_at": now,
            "created_by": by,
            "expires_at": None if days is None else now + days * DAY_SECONDS,
        },
    )
    return made.id, made.secret
