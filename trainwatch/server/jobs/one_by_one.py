"""Work on many runs or series, in which one that fails keeps no other waiting."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable
from typing import Final, TypeVar

from sqlalchemy import exc

from trainwatch.server.store.leases import Outdated

logger = logging.getLogger(__name__)

_HOPELESS: Final = (Outdated, exc.OperationalError, exc.InterfaceError, exc.InternalError, exc.TimeoutError)
"""Errors that no other would be spared: the lease is another server's, or the database is away."""
T = TypeVar("T", bound=Hashable)


class Incomplete(Exception):
    """Some could not be dealt with; why is in the log."""


def each(things: Iterable[T], work: Callable[[T], int], failed: set[T]) -> int:
    """Works on some things.

    Args:
        things: Which; those that failed before are passed over.
        work: Told one of them; returns how much was done.
        failed: Those where it raised are added to it.

    Returns:
        How much was done in all.

    Raises:
        Outdated: Another server does the job.
        DBAPIError: The database is away.
    """
    done = 0
    for one in things:
        if one in failed:
            continue
        try:
            done += work(one)
        except _HOPELESS:
            raise
        except Exception:
            logger.exception("%r cannot be dealt with; it is tried again", one)
            failed.add(one)
    return done


def complain(failed: set[T]) -> None:
    """Says that some failed, so that the job counts as failed.

    Raises:
        Incomplete: There is one.
    """
    if failed:
        raise Incomplete(f"could not be dealt with: {len(failed)}, among them {next(iter(failed))!r}")
