"""The database that a command works on without a server."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from trainwatch.cli.terminal import Failure, Mistake, need

if TYPE_CHECKING:
    from trainwatch.server.db import Database

_PACKAGES: Final = ("alembic", "fastapi", "pydantic_settings", "sqlalchemy")


@contextmanager
def opened(options: argparse.Namespace, *, migrated: bool = True) -> Iterator[Database]:
    """Opens the database that ``--database``, ``--home`` or the environment name.

    Args:
        options: The command line.
        migrated: Whether it is brought to this version's schema first.

    Raises:
        Mistake: It is of another version, or what is asked for is refused.
        Failure: It cannot be used.
    """
    need(_PACKAGES, "server")
    from pydantic import ValidationError

    from trainwatch.server.settings import Settings

    given = {name: getattr(options, name) for name in ("database", "home") if getattr(options, name) is not None}
    try:
        chosen = Settings(**given)
    except ValidationError as error:
        first = error.errors()[0]
        name = "TRAINWATCH_" + "_".join(str(part) for part in first["loc"]).upper()
        raise Mistake(f"{name}={first['input']!r}: {first['msg']}") from None
    with opened_at(chosen.database_url, migrated=migrated) as database:
        yield database


@contextmanager
def opened_at(url: str, *, migrated: bool = True) -> Iterator[Database]:
    """Opens the database at an address; see :func:`opened`."""
    need(_PACKAGES, "server")
    from sqlalchemy import exc

    from trainwatch.server import migrate
    from trainwatch.server.db import Database
    from trainwatch.server.settings import Refused

    try:
        database = Database(url)
        try:
            if migrated:
                migrate.upgrade(database)
            yield database
        finally:
            database.close()
    except Refused as error:
        raise Mistake(str(error)) from None
    except exc.ArgumentError as error:
        raise Mistake(f"that is no address of a database: {error}") from None
    except (exc.SQLAlchemyError, OSError) as error:
        # The address stays out of it: it may hold a password.
        kind = url.partition(":")[0]
        problem = str(getattr(error, "orig", None) or error).partition("\n")[0][:300]
        raise Failure(f"the {kind} database cannot be used: {problem}") from None
