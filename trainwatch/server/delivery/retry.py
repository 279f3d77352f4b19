"""What an answer means for a delivery: the one table for all channels."""

from __future__ import annotations

import email.utils
import random
from dataclasses import dataclass
from datetime import timezone
from typing import Final, Literal

Verdict = Literal["sent", "retry", "refused", "disable"]
"""Taken; try again; this message never; this channel never, until somebody repairs it."""

GIVE_UP_SECONDS: Final = 24 * 3600.0
_FIRST_SECONDS: Final = 5.0
_LONGEST_SECONDS: Final = 1800.0
_LONGEST_WISH: Final = 3600.0
_JITTER: Final = 0.2

_PASSING: Final = frozenset({408, 423, 425, 429})
# Of a message that a receiver cannot read, the next one may well be read.
_REFUSED: Final = frozenset({400, 409, 411, 413, 415, 422})


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one attempt.

    Attributes:
        verdict: What it means.
        status: The HTTP status; None where none came.
        error: What is wrong, without any secret; empty when it was taken.
        retry_after: Seconds that the receiver wants to be left alone; None: it did not say.
    """

    verdict: Verdict
    status: int | None = None
    error: str = ""
    retry_after: float | None = None


def judge(status: int) -> Verdict:
    """Says what an HTTP status means.

    Redirects are not followed: they would lead a message, and what is secret in its address, to somebody else.
    """
    if 200 <= status < 300:
        return "sent"
    if status >= 500 or status in _PASSING:
        return "retry"
    return "refused" if status in _REFUSED else "disable"


def delay(attempts: int, retry_after: float | None = None, chance: float | None = None) -> float:
    """Returns how long to wait for the next attempt, in seconds.

    Args:
        attempts: How many were made.
        retry_after: What the receiver wishes.
        chance: From 0 to 1, for the jitter: many deliveries that failed together are not to come back together.
    """
    usual = min(_LONGEST_SECONDS, _FIRST_SECONDS * 2.0 ** min(attempts - 1, 20))
    spread = random.random() if chance is None else chance
    waited = usual * (1 - _JITTER + 2 * _JITTER * spread)
    if retry_after is None:
        return waited
    # A wish is a lower bound: never earlier, and a little later than all others that heard the same.
    return max(0.0, min(retry_after, _LONGEST_WISH)) + spread


def wish(header: str | None, now: float) -> float | None:
    """Reads a Retry-After header: seconds, or a date.

    Args:
        header: Its value.
        now: The server's clock.

    Returns:
        Seconds from now; None when it says nothing.
    """
    text = (header or "").strip()
    if text.isascii() and text.replace(".", "", 1).isdigit():
        return float(text)
    try:
        moment = email.utils.parsedate_to_datetime(text)
    except (TypeError, ValueError, IndexError, OverflowError):  # the last one: a year that no machine can count to
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return max(0.0, moment.timestamp() - now)
