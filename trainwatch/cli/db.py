"""``trainwatch db``: looks after the database itself; no server needs to run."""

from __future__ import annotations

import argparse
import time
from typing import Any, Final

from trainwatch.cli.terminal import Failure, Mistake, need, say

_PACKAGES: Final = ("alembic", "fastapi", "pydantic_settings", "sqlalchemy")
_AGAIN: Final = 1.0


def add(commands: Any, home: argparse.ArgumentParser) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser("db", help="look after the database")
    tasks = parser.add_subparsers(dest="task", metavar="TASK", required=True)
    where = argparse.ArgumentParser(add_help=False, parents=[home])
    where.add_argument("--database", metavar="URL", help="e.g. postgresql://user@host/name (default: SQLite in --home)")

    upgrade = tasks.add_parser("upgrade", parents=[where], help="bring the database to the schema of this version")
    upgrade.add_argument(
        "--wait", type=_seconds, default=0.0, metavar="S", help="wait so long for the database to answer (default: 0)"
    )
    upgrade.set_defaults(run=_upgrade)


def _upgrade(options: argparse.Namespace) -> int:
    need(_PACKAGES, "server")
    from pydantic import ValidationError
    from sqlalchemy import exc

    from trainwatch.server import migrate
    from trainwatch.server.db import Database
    from trainwatch.server.settings import Refused, Settings

    wanted = {name: getattr(options, name) for name in ("database", "home")}
    try:
        chosen = Settings(**{name: value for name, value in wanted.items() if value is not None})
        database = Database(chosen.database_url)
    except (ValidationError, exc.ArgumentError, OSError) as error:
        raise Mistake(f"the database cannot be opened: {_first_line(error)}") from None
    end = time.monotonic() + options.wait
    try:
        while True:
            try:
                before = migrate.current(database)
                migrate.upgrade(database)
                break
            except (exc.OperationalError, exc.InterfaceError) as error:
                if time.monotonic() > end:
                    problem = _first_line(getattr(error, "orig", None) or error)
                    raise Failure(f"the {database.kind} database cannot be used: {problem}") from None
            time.sleep(_AGAIN)
    except Refused as error:
        raise Mistake(str(error)) from None
    finally:
        database.close()
    after = migrate.newest()
    say(
        f"The schema is {after} already."
        if before == after
        else f"Brought the schema from {before or 'none'} to {after}."
    )
    return 0


def _first_line(error: object) -> str:
    return str(error).partition("\n")[0][:300]


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 0 to 3600")
    return number
