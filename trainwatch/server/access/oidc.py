"""Logging in with an OpenID provider: the authorization code flow with PKCE, by Authlib.

What the flow has to remember (state, nonce, verifier, the page to come back to) is in a cookie of the browser that
began it, so that any replica can end it. A state that somebody else began is of no use: theirs is another cookie.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import logging
from dataclasses import dataclass
from typing import Any, Final, Literal

from trainwatch.server.access.principal import Scope
from trainwatch.server.settings import Settings, SsoAccess

logger = logging.getLogger(__name__)

FLOW_COOKIE: Final = "trainwatch_sso"
FLOW_SECONDS: Final = 600
# Of the provider's keys, which are public: with any of a shared secret, or of none, anybody could sign.
_ALGORITHMS: Final = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"}
)
_SECONDS: Final = 10.0
Reason = Literal["declined", "expired", "failed", "nobody"]


class SsoError(Exception):
    """It did not come to a login.

    Attributes:
        reason: For the login page, which has a sentence for each.
    """

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Person:
    """Whom the provider vouches for.

    Attributes:
        name: Their e-mail address, or what they are called.
        project: The only project that they see; empty: all.
        scopes: What they may do.
        to: The page that they wanted.
    """

    name: str
    project: str
    scopes: frozenset[Scope]
    to: str


class Sso:
    """An OpenID provider.

    Args:
        settings: The server's settings.
    """

    def __init__(self, settings: Settings) -> None:
        from authlib.integrations.starlette_client import OAuth

        self._settings = settings
        self.issuer: Final = settings.oidc_issuer
        self._client = OAuth().register(
            "trainwatch",
            client_id=settings.oidc_client_id,
            client_secret=settings.oidc_client_secret.get_secret_value() or None,
            server_metadata_url=f"{settings.oidc_issuer.rstrip('/')}/.well-known/openid-configuration",
            client_kwargs={"scope": "openid email profile", "code_challenge_method": "S256", "timeout": _SECONDS},
        )

    async def begin(self, callback: str, to: str) -> tuple[str, str]:
        """Begins a login.

        Args:
            callback: Where the provider is to send the browser back.
            to: The page to show then.

        Returns:
            Where to send the browser, and what it is to keep until it comes back.

        Raises:
            SsoError: The provider does not answer as it should.
        """
        try:
            made = await self._client.create_authorization_url(callback)
        except Exception as error:
            raise self._failed("ask the provider where to log in", error) from None
        kept = {name: made[name] for name in ("state", "nonce", "code_verifier")} | {"to": _local(to)}
        return str(made["url"]), base64.urlsafe_b64encode(json.dumps(kept).encode()).decode()

    async def end(self, callback: str, flow: str, code: str, state: str) -> Person:
        """Ends a login.

        Args:
            callback: The same as when it began.
            flow: What the browser kept.
            code: What the provider gave it.
            state: What it was sent there with.

        Raises:
            SsoError: The provider vouches for nobody, or for somebody who may do nothing here.
        """
        kept = _kept(flow)
        if not code or not hmac.compare_digest(kept["state"].encode(), state.encode()):
            raise SsoError("expired")
        try:
            given = await self._client.fetch_access_token(
                code=code, redirect_uri=callback, code_verifier=kept["code_verifier"]
            )
            metadata = await self._client.load_server_metadata()
            offered = set(metadata.get("id_token_signing_alg_values_supported") or ["RS256"])
            metadata["id_token_signing_alg_values_supported"] = sorted(offered & _ALGORITHMS)
            claims = await self._client.parse_id_token(
                given,
                nonce=kept["nonce"],
                claims_options={
                    "iss": {"essential": True, "value": self.issuer},
                    "aud": {"essential": True, "value": self._settings.oidc_client_id},
                },
                leeway=60,
            )
        except Exception as error:
            raise self._failed("take the provider's word", error) from None
        if not claims:
            raise self._failed("take the provider's word", ValueError("no id token"))
        allowed = access_of(claims, self._settings)
        if allowed is None:
            logger.info("the provider vouches for somebody who may do nothing here")
            raise SsoError("nobody")
        name = str(claims.get("email") or claims.get("name") or claims["sub"])[:200]
        return Person(name, allowed.project, frozenset(allowed.scopes), kept["to"])

    def _failed(self, what: str, error: Exception) -> SsoError:
        # Only the kind: the message of an HTTP library or of a provider may hold the code or the token.
        logger.warning("cannot %s: %s", what, type(error).__name__)
        return SsoError("failed")


def access_of(claims: Any, settings: Settings) -> SsoAccess | None:
    """Returns the first entry of ``oidc_access`` that fits a person; None: none does.

    Args:
        claims: Of the id token, whose signature was checked.
        settings: The server's settings.
    """
    email = claims.get("email")
    verified = claims.get("email_verified") is True and isinstance(email, str)
    domain = email.rpartition("@")[2].lower() if verified else ""
    groups = claims.get(settings.oidc_groups_claim)
    groups = groups if isinstance(groups, list) else []
    for one in settings.oidc_access:
        if (not one.domain or one.domain.lower() == domain) and (not one.group or one.group in groups):
            return one
    return None


def _kept(flow: str) -> dict[str, str]:
    try:
        kept: dict[str, str] = json.loads(base64.urlsafe_b64decode(flow.encode()))
        if set(kept) != {"state", "nonce", "code_verifier", "to"} or not all(isinstance(v, str) for v in kept.values()):
            raise SsoError("expired")
    except (ValueError, TypeError, RecursionError, binascii.Error):
        raise SsoError("expired") from None
    return kept | {"to": _local(kept["to"])}


def _local(to: str) -> str:
    """Returns a page of this server; anything that could lead elsewhere becomes the first page."""
    fine = to.startswith("/") and not to.startswith("//") and "\\" not in to and to.isprintable()
    return to if fine else "/"
