"""What the API says of tokens, sessions and logging in."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from trainwatch.server.access.principal import Scope
from trainwatch.server.http.spelling import Model

Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100)]
_DAYS = 3650


class Sso(Model):
    """An OpenID provider to log in with: a link to ``/api/login/oidc``."""

    name: str


class LoginWays(Model):
    """How one gets in."""

    open: bool = Field(description="The server has no token: everybody on its machine is let in.")
    sso: Sso | None


class Session(Model):
    """Who asks, and what they may do."""

    name: str
    project: str = Field(description="The only project that they see; empty: all.")
    scopes: list[Scope]
    open: bool = Field(description="The server has no token: everybody on its machine is let in.")
    logged_in: bool = Field(description="With a session, which one can log out of.")
    expires_at: float | None = Field(description="Unix seconds, by the server's clock, like all times here.")


class TokenRequest(Model):
    """A token to be made."""

    name: Name = Field(description="For people: who or what uses it.")
    scopes: list[Scope] = Field(min_length=1, max_length=4)
    days: Annotated[float, Field(gt=0, le=_DAYS)] | None = Field(
        default=90, description="Until it expires; null: it does not."
    )


class AnyTokenRequest(TokenRequest):
    """A token to be made, of a project or of all."""

    project: str = Field(default="", max_length=100, description="The only project that it sees; empty: all.")


class TokenInfo(Model):
    """A token, without its secret."""

    id: str
    name: str
    project: str = Field(description="Empty: all.")
    scopes: list[Scope]
    created_at: float
    created_by: str
    expires_at: float | None
    revoked_at: float | None
    last_used_at: float | None = Field(description="To the minute; null: never.")


class NewToken(TokenInfo):
    """A token that was just made. It is shown this once; the server keeps only a hash of it."""

    token: str


class SessionInfo(Model):
    """A session of a browser."""

    id: str
    name: str = Field(description="Of the token that it was opened with, or of the person.")
    project: str
    scopes: list[Scope]
    token: str | None = Field(description="The id of that token, if it is one of the database.")
    sso: bool = Field(description="Opened through the OpenID provider.")
    created_at: float
    expires_at: float
    last_used_at: float | None
    own: bool = Field(description="It is the one that asks.")
