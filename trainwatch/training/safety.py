"""The boundary between TrainWatch and somebody else's training: the only place here that swallows an Exception.

Whatever goes wrong on our side is reported once per place, counted, and shown on the run's page; the training goes on.
KeyboardInterrupt and SystemExit are the user's and pass.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

logger = logging.getLogger("trainwatch")

P = ParamSpec("P")
R = TypeVar("R")


class Safety:
    """Counts what was swallowed.

    Args:
        quiet: Only count: what is tried here may fail without anything being wrong.

    Attributes:
        errors: Place to number of exceptions swallowed there.
        message: The newest of them, as text.
        unreported: Something was added since it was last recorded in the journal.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.errors: dict[str, int] = {}
        self.message = ""
        self.unreported = False

    @contextmanager
    def guard(self, place: str) -> Iterator[None]:
        """Swallows what is raised inside.

        Args:
            place: Name of the place, for people.
        """
        try:
            yield
        except Exception as error:
            self.swallow(place, error)

    def swallow(self, place: str, error: Exception) -> None:
        """Counts an exception, and reports it when it is the first at its place."""
        seen = self.errors.get(place, 0)
        self.errors[place] = seen + 1
        self.message = f"{place}: {type(error).__name__}: {text_of(error)}"[:2000]
        self.unreported = True
        if not seen and not self.quiet:
            logger.warning(
                "TrainWatch failed in %s and goes on without; your training is not affected (reported once).",
                place,
                exc_info=error,
            )


def text_of(error: BaseException) -> str:
    """Returns an exception's message; an exception of the user's own may fail to give one."""
    try:
        return str(error)
    except Exception:
        return "(its message could not be made)"


def harmless(method: Callable[P, R]) -> Callable[P, R | None]:
    """Makes a method harmless: what it raises is swallowed by its object's ``safety``, and it answers None."""

    @functools.wraps(method)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R | None:
        try:
            return method(*args, **kwargs)
        except Exception as error:
            safety: Safety = args[0].safety  # type: ignore[attr-defined]
            safety.swallow(method.__qualname__, error)
            return None

    return wrapper
