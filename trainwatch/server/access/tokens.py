"""How a token looks, and what is kept of it."""

from __future__ import annotations

import re
import secrets
from hashlib import sha256
from typing import Final, NamedTuple

_SECRET_BYTES: Final = 32
_FORM: Final = re.compile(r"tw_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")


class Made(NamedTuple):
    """A new secret.

    Attributes:
        id: Public; names it in lists and in the log.
        secret: What its owner keeps; shown once.
        digest: What is stored.
    """

    id: str
    secret: str
    digest: str


def new_token() -> Made:
    """Makes a token, ``tw_<id>_<secret>``."""
    name = secrets.token_hex(6)
    secret = f"tw_{name}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    return Made(name, secret, digest(secret))


def new_session() -> Made:
    """Makes what a session cookie holds."""
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    return Made(secrets.token_hex(6), secret, digest(secret))


def id_of(shown: str) -> str | None:
    """Returns the id in something that has the form of a token; None when it has not."""
    found = _FORM.fullmatch(shown)
    return found[1] if found else None


def digest(secret: str) -> str:
    """Hashes a secret.

    SHA-256 and no slow hash: those make guessing a password that a person thought up expensive. There is no guessing
    256 random bits, and this is computed for every request.
    """
    return sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
