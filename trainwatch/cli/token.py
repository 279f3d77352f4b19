"""``trainwatch token``: makes, lists and revokes tokens, in the database itself.

It needs no server and no token: whoever can read the database could do all that anyway. So an admin who has lost his
own token makes himself another one.
"""

from __future__ import annotations

import argparse
import time
from datetime import datetime
from typing import Any, Final

from trainwatch import settings
from trainwatch.cli.database import opened
from trainwatch.cli.terminal import Mistake, paint, say

_SCOPES: Final = ("ingest", "read", "write", "admin")
_DAYS: Final = 90.0


def add(commands: Any, home: argparse.ArgumentParser) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser("token", help="make, list or revoke tokens for agents and people")
    tasks = parser.add_subparsers(dest="task", metavar="TASK", required=True)
    where = argparse.ArgumentParser(add_help=False, parents=[home])
    where.add_argument("--database", metavar="URL", help="e.g. postgresql://user@host/name (default: SQLite in --home)")

    create = tasks.add_parser("create", parents=[where], help="make a token, and show it this once")
    create.add_argument("name", metavar="NAME", help="who or what uses it, for people")
    create.add_argument("--project", default="", metavar="P", help="the only project that it sees (default: all)")
    create.add_argument(
        "--scope", action="append", choices=_SCOPES, metavar="S", help="ingest, read, write or admin; may be repeated"
    )
    create.add_argument(
        "--days", type=_days, default=_DAYS, metavar="N", help="until it expires (default: 90; 0: never)"
    )
    create.set_defaults(run=_create)

    listed = tasks.add_parser("list", parents=[where], help="list tokens: what they may do, when they were last used")
    listed.add_argument("--project", metavar="P", help="only this project's")
    listed.set_defaults(run=_list)

    revoke = tasks.add_parser("revoke", parents=[where], help="revoke a token, and end its sessions")
    revoke.add_argument("id", metavar="ID", help="as `trainwatch token list` shows it")
    revoke.set_defaults(run=_revoke)


def _create(options: argparse.Namespace) -> int:
    name = options.name.strip()
    if not 0 < len(name) <= 100 or not name.isprintable():
        raise Mistake("a token's name is 1 to 100 printable characters")
    if not options.scope:
        raise Mistake("say what the token may do: --scope ingest for agents, --scope read for people who look")
    if options.project and not settings.is_name(options.project):
        raise Mistake(f"{options.project!r} can be no project: use letters, digits, '-', '_' and '.', at most 100")
    with opened(options) as database:
        from trainwatch.server.access.issue import issue

        with database.write() as connection:
            made, secret = issue(
                connection,
                name=name,
                project=options.project,
                scopes=options.scope,
                days=options.days or None,
                by="the command line",
                now=time.time(),
            )
    say(f"Made token {made} ({name}). Copy it now; nobody can show it again:")
    say(secret)
    return 0


def _list(options: argparse.Namespace) -> int:
    with opened(options) as database:
        from trainwatch.server.store import access as store

        with database.read() as connection:
            rows = store.listed_tokens(connection, options.project)
    if not rows:
        say("There are no tokens.")
    now = time.time()
    for row in rows:
        state = _state(row, now)
        head = f"{row.id}  {row.name}"
        say(head if state else paint("1", head))
        used = f"last used {_moment(row.last_used_at)}" if row.last_used_at is not None else "never used"
        ends = "does not expire" if row.expires_at is None else f"expires {_moment(row.expires_at)}"
        say(f"    {row.project or 'all projects'}; {row.scopes}; {used}; {state or ends}")
    return 0


def _revoke(options: argparse.Namespace) -> int:
    name = options.id.removeprefix("tw_").partition("_")[0]
    with opened(options) as database:
        from trainwatch.server.store import access as store

        with database.write() as connection:
            if not store.revoke_token(connection, name, time.time()):
                raise Mistake(f"there is no token {name!r}; `trainwatch token list` shows them")
    say(f"Token {name} is revoked; running servers hear of it within seconds.")
    return 0


def _state(row: Any, now: float) -> str:
    """Says why a token opens nothing any more; empty while it does."""
    if row.revoked_at is not None:
        return f"revoked {_moment(row.revoked_at)}"
    return f"expired {_moment(row.expires_at)}" if row.expires_at is not None and row.expires_at <= now else ""


def _moment(time_at: float) -> str:
    return datetime.fromtimestamp(time_at).astimezone().strftime("%Y-%m-%d %H:%M")


def _days(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 3650:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of days from 0 to 3650")
    return number
