"""Who asks, and what they may do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

Scope = Literal["ingest", "read", "write", "admin"]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
_BRINGS: Final[dict[Scope, frozenset[Scope]]] = {
    "ingest": frozenset({"ingest"}),
    "read": frozenset({"read"}),
    "write": frozenset({"read", "write"}),
    "admin": frozenset(SCOPES),
}


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody, or something, that was let in.

    Attributes:
        key: Names it among all others; requests are counted by it.
        name: For people.
        project: The only project that it sees; empty: all.
        scopes: What it was given; see :meth:`may`.
        token: The id of its token in the database; empty: it has none there.
        session: The id of its session; empty: it is not a browser that logged in.
        expires_at: When its way in ends, in Unix seconds; None: not by itself.
        digest: Of what it showed; empty when nothing has to be looked up again.
    """

    key: str
    name: str
    project: str
    scopes: frozenset[Scope]
    token: str = ""
    session: str = ""
    expires_at: float | None = None
    digest: str = field(default="", repr=False)

    def may(self, scope: Scope) -> bool:
        """Tells whether it has a scope, or one that brings it: write brings read, admin all."""
        return any(scope in _BRINGS[own] for own in self.scopes)

    def sees(self, project: str) -> bool:
        """Tells whether a project is there for it."""
        return self.project in ("", project)


OPEN: Final = Principal("open", "this machine", "", frozenset({"admin"}))
"""Whoever asks a server without a token: it listens on loopback only."""


def parse_scopes(text: str) -> frozenset[Scope]:
    """Reads stored scopes; those of a later version mean nothing here."""
    words = text.split()
    return frozenset(scope for scope in SCOPES if scope in words)


def format_scopes(scopes: Iterable[Scope]) -> str:
    """Returns scopes as they are stored."""
    given = frozenset(scopes)
    return " ".join(scope for scope in SCOPES if scope in given)
