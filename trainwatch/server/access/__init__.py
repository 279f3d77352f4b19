"""Who is let in, what they may do there, and what every response says about how it may be used."""

from trainwatch.server.access.gate import HEADERS, Gate
from trainwatch.server.access.keyring import Keyring, NotAdmitted, TooManyGuesses
from trainwatch.server.access.limits import Limits
from trainwatch.server.access.principal import OPEN, SCOPES, Principal, Scope
from trainwatch.server.access.required import COOKIE, Allowed, PrincipalDep, anybody, client_of, clipped, require

__all__ = [
    "COOKIE",
    "HEADERS",
    "OPEN",
    "SCOPES",
    "Allowed",
    "Gate",
    "Keyring",
    "Limits",
    "NotAdmitted",
    "Principal",
    "PrincipalDep",
    "Scope",
    "TooManyGuesses",
    "anybody",
    "client_of",
    "clipped",
    "require",
]
