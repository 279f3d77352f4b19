"""From what a request shows to who it is.

What was looked up is known for some seconds, so that the shipments of a thousand agents do not read the same row a
thousand times a second. A token that is revoked through this server is forgotten at once; the other replicas hear of it
within those seconds.
"""

from __future__ import annotations

import hmac
import logging
import threading
from collections.abc import Callable
from functools import cached_property
from hashlib import scrypt
from typing import Any, Final

from anyio import to_thread
from sqlalchemy import Row, exc

from trainwatch.server.access.limits import Buckets, Guesses, Newest, place_of
from trainwatch.server.access.principal import Principal, Scope, format_scopes, parse_scopes
from trainwatch.server.access.tokens import Made, digest, id_of, new_session
from trainwatch.server.db import Database
from trainwatch.server.settings import Settings
from trainwatch.server.store import access as store

logger = logging.getLogger(__name__)

KNOWN_SECONDS: Final = 5.0
STRANGERS: Final = (10.0, 300.0)
"""Different tokens and cookies that open nothing, from one address: how many a second, and how many at once. Each costs
a look into the database. Many, since all agents of a cluster may come from one address."""
SESSION_SECONDS: Final = 30 * 24 * 3600.0
SSO_SESSION_SECONDS: Final = 12 * 3600.0
"""Shorter, because a person who leaves is only turned away when they log in again."""
_OF_TOKEN: Final = "token"
_INSTALLATION: Final = "installation"


class NotAdmitted(Exception):
    """What was shown opens nothing; the message says why, and holds nothing of it."""


class TooManyGuesses(Exception):
    """Too many wrong tokens came from this address.

    Attributes:
        wait: Seconds until another one is looked at.
    """

    def __init__(self, wait: float) -> None:
        super().__init__("Too many wrong tokens or logins came from this address: wait a little.")
        self.wait = wait


class Keyring:
    """Knows the installation's own token, those in the database, and the sessions of browsers.

    Args:
        settings: The server's settings.
        database: Where tokens and sessions are.
        clock: The server's clock, in Unix seconds.
        monotonic: A clock that never goes back, in seconds.
    """

    def __init__(
        self, settings: Settings, database: Database, clock: Callable[[], float], monotonic: Callable[[], float]
    ) -> None:
        self._secret = digest(settings.secret) if settings.secret else ""
        self._settings = settings
        self._database = database
        self._clock = clock
        self._monotonic = monotonic
        self._guesses = Guesses()
        self._strangers = Buckets(*STRANGERS)
        self._known: Newest[tuple[Principal, float]] = Newest(10_000)
        self._refused: Newest[tuple[str, float]] = Newest(10_000)
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether there is no token, so that everybody on this machine is let in."""
        return not self._secret

    async def of_token(self, shown: str, address: str, *, guessing: bool = False) -> Principal:
        """Returns whose token this is.

        Args:
            shown: What was shown.
            address: The client's, for counting wrong ones.
            guessing: Whether a person may be typing: what has the form of our tokens is counted too then. Else it is
                not, since nobody guesses 256 bits, and an agent with a revoked token must not lock others out.

        Raises:
            NotAdmitted: It is nobody's, or no more.
            TooManyGuesses: So many wrong ones came from there that this one is not looked at.
        """
        hashed = digest(shown)
        name = id_of(shown)
        counted = guessing or name is None
        if counted:
            wait = self._guesses.wait(address, hashed, self._monotonic())
            if wait:
                raise TooManyGuesses(wait)
        if self._secret and hmac.compare_digest(hashed, self._secret):
            return Principal(_INSTALLATION, "the server's own token", "", frozenset({"admin"}))
        try:
            if name is None:
                raise NotAdmitted("This is not a token of this server.")
            return await self._look(hashed, address, self._find_token, name, hashed)
        except NotAdmitted:
            if counted:
                self._guesses.wrong(address, hashed, self._monotonic())
            logger.info("refused a token (%s) from %s", f"tw_{name}_…" if name else "of no known form", address)
            raise

    async def of_session(self, cookie: str, address: str) -> Principal:
        """Returns whose session a cookie stands for.

        Args:
            cookie: What was shown.
            address: The client's, for counting those that never were.

        Raises:
            NotAdmitted: It is over, or never was.
            TooManyGuesses: So many that never were came from there that this one is not looked at.
        """
        hashed = digest(cookie)
        return await self._look(hashed, address, self._find_session, hashed)

    def stranger(self, address: str) -> None:
        """Notes that somebody without a token or session cost the server something in vain."""
        self._strangers.charge(place_of(address), self._monotonic(), 1.0)

    def let_try(self, address: str) -> None:
        """Lets somebody without a token or session have something done.

        Raises:
            TooManyGuesses: Too much was in vain from there.
        """
        wait = self._strangers.wait(place_of(address), self._monotonic(), 1.0)
        if wait:
            raise TooManyGuesses(wait)

    async def still(self, principal: Principal) -> bool:
        """Tells whether somebody who was let in would be let in now; for what is answered over a long time."""
        if not principal.digest or self._recall(principal.digest) is not None:
            return True
        try:
            if principal.session:
                await to_thread.run_sync(self._find_session, principal.digest)
            else:
                await to_thread.run_sync(self._find_token, principal.token, principal.digest)
        except NotAdmitted:
            return False
        except exc.SQLAlchemyError:
            return True  # nothing comes out of a database that is away
        return True

    def open_session(self, principal: Principal) -> tuple[Made, float]:
        """Makes a session for somebody who showed a token.

        Returns:
            The session, and when it ends.
        """
        now = self._clock()
        expires_at = min(now + SESSION_SECONDS, principal.expires_at or float("inf"))
        origin = _OF_TOKEN if principal.token else self._installation
        return self._add_session(principal, origin, expires_at), expires_at

    def open_sso_session(self, issuer: str, name: str, project: str, scopes: frozenset[Scope]) -> tuple[Made, float]:
        """Makes a session for a person whom an OpenID provider vouches for.

        Returns:
            The session, and when it ends.
        """
        expires_at = self._clock() + SSO_SESSION_SECONDS
        return self._add_session(Principal("", name, project, scopes), f"oidc:{issuer}", expires_at), expires_at

    def close_session(self, cookie: str) -> None:
        """Ends the session that a cookie stands for, if there is one."""
        hashed = digest(cookie)
        with self._database.read() as connection:
            found = store.session(connection, hashed)
        if found is None:  # anybody can ask for this: only what is there is worth the one writer
            return
        with self._database.write() as connection:
            store.end_session_of(connection, hashed)
        with self._lock:
            self._known.drop(hashed)

    def forget(self) -> None:
        """Looks everything up again from now on; after something was revoked."""
        with self._lock:
            self._known.clear()
            self._refused.clear()

    @cached_property
    def _installation(self) -> str:
        # Slow, because a person may have thought this token up, and whoever gets at the database could guess it.
        hashed = scrypt(self._settings.secret.encode(), salt=b"trainwatch session", n=2**14, r=8, p=1, dklen=16)
        return f"installation:{hashed.hex()}"

    def _add_session(self, principal: Principal, origin: str, expires_at: float) -> Made:
        made, now = new_session(), self._clock()
        values = {
            "id": made.id,
            "digest": made.digest,
            "token": principal.token or None,
            "origin": origin,
            "name": principal.name,
            "project": principal.project,
            "scopes": format_scopes(principal.scopes),
            "created_at": now,
            "expires_at": expires_at,
        }
        with self._database.write() as connection:
            store.add_session(connection, values, now)
        return made

    async def _look(self, hashed: str, address: str, find: Callable[..., Principal], *arguments: str) -> Principal:
        """Returns who showed something: as it was known some seconds ago, or as the database says."""
        known = self._recall(hashed)
        if known is not None:
            return known
        with self._lock:
            refused = self._refused.get(hashed)
        if refused is not None and self._monotonic() < refused[1]:
            raise NotAdmitted(refused[0])
        self.let_try(address)
        try:
            return await to_thread.run_sync(find, *arguments)
        except NotAdmitted as problem:
            # Only the first time: whoever keeps yesterday's token, with a thousand agents, locks nobody else out.
            if refused is None:
                self.stranger(address)
            with self._lock:
                self._refused.put(hashed, (str(problem), self._monotonic() + KNOWN_SECONDS))
            raise

    def _recall(self, hashed: str) -> Principal | None:
        with self._lock:
            known = self._known.get(hashed)
        if known is None or self._monotonic() >= known[1]:
            return None
        principal = known[0]
        return None if principal.expires_at is not None and self._clock() >= principal.expires_at else principal

    def _remember(self, principal: Principal) -> Principal:
        with self._lock:
            self._known.put(principal.digest, (principal, self._monotonic() + KNOWN_SECONDS))
        return principal

    def _find_token(self, name: str, hashed: str) -> Principal:
        with self._database.read() as connection:
            row = store.token(connection, name)
        if row is None or not hmac.compare_digest(row.digest, hashed):
            raise NotAdmitted("This is not a token of this server.")
        self._check_token(row)
        if store.is_due(row.last_used_at, self._clock()):
            self._touch(name, "")
        return self._remember(
            Principal(
                key=f"token:{row.id}",
                name=row.name,
                project=row.project,
                scopes=parse_scopes(row.scopes),
                token=row.id,
                expires_at=row.expires_at,
                digest=hashed,
            )
        )

    def _find_session(self, hashed: str) -> Principal:
        with self._database.read() as connection:
            row = store.session(connection, hashed)
            token = None if row is None or row.token is None else store.token(connection, row.token)
        if row is None or self._clock() >= row.expires_at:
            raise NotAdmitted("The session is over: log in again.")
        by_installation = token is None and row.origin == self._installation
        if token is not None:
            self._check_token(token)
        elif not by_installation and row.origin != f"oidc:{self._settings.oidc_issuer}":
            raise NotAdmitted("What this session was opened with is not valid any more: log in again.")
        if store.is_due(row.last_used_at, self._clock()):
            self._touch(row.token or "", row.id)
        source = row if token is None else token
        return self._remember(
            Principal(
                # All that one token opens counts as that token's.
                key=f"token:{row.token}" if row.token else _INSTALLATION if by_installation else f"session:{row.id}",
                name=source.name,
                project=source.project,
                scopes=parse_scopes(source.scopes),
                token=row.token or "",
                session=row.id,
                expires_at=row.expires_at,
                digest=hashed,
            )
        )

    def _check_token(self, row: Row[Any]) -> None:
        if row.revoked_at is not None:
            raise NotAdmitted(f"The token {row.name[:100]!r} was revoked.")
        if row.expires_at is not None and self._clock() >= row.expires_at:
            raise NotAdmitted(f"The token {row.name[:100]!r} has expired.")

    def _touch(self, token: str, session: str) -> None:
        now = self._clock()
        try:
            with self._database.write() as connection:
                if token:
                    store.touch_token(connection, token, now)
                if session:
                    store.touch_session(connection, session, now)
        except exc.SQLAlchemyError as error:
            # A full disk, say: nobody is turned away because this cannot be noted.
            logger.warning("cannot note that a token was used: %s", type(error).__name__)
