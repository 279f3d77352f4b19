"""A small OpenID provider on a socket: discovery, authorization, tokens with signed id tokens, keys."""

from __future__ import annotations

import base64
import hmac
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT_ID = "trainwatch"
CLIENT_SECRET = "the client's secret"


class Provider:
    """What the provider says of whoever logs in, and how it may lie; a test changes it.

    Attributes:
        url: Its address, which is its issuer.
        claims: Of the person, over those that the protocol wants.
        key: What it signs with.
        published: The keys that it shows.
        status: What it answers for a code, instead of a token; 0: a token.
        forging: Algorithm and key of id tokens that it did not sign itself.
        challenges: PKCE challenge and nonce by code.
        seen: Every secret that went through it, for looking for them in logs.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.claims: dict[str, Any] = {}
        self.key: Any = RSAKey.generate_key(2048, {"kid": "first"})
        self.published: list[Any] = [self.key]
        self.status = 0
        self.forging: tuple[str, bytes] | None = None
        self.challenges: dict[str, tuple[str, str, str]] = {}
        self.seen: list[str] = []

    def metadata(self) -> dict[str, Any]:
        """The discovery document."""
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256", "HS256", "none"],
        }

    def authorize(self, query: dict[str, str]) -> str:
        """Returns where the browser is sent back to."""
        assert query["response_type"] == "code"
        assert query["client_id"] == CLIENT_ID
        assert query["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(16)
        self.challenges[code] = query["code_challenge"], query["nonce"], query["redirect_uri"]
        self.seen += [code, query["state"], query["nonce"]]
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"

    def exchange(self, form: dict[str, str], authorization: str) -> dict[str, Any] | None:
        """Returns tokens for a code; None where the client does not prove itself."""
        shown = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        challenge, nonce, redirect = self.challenges.pop(form["code"], ("", "", ""))
        made = base64.urlsafe_b64encode(sha256(form["code_verifier"].encode()).digest()).decode().rstrip("=")
        if authorization != f"Basic {shown}" or made != challenge or redirect != form["redirect_uri"]:
            return None
        now = int(time.time())
        claims = {"iss": self.url, "sub": "u1", "aud": CLIENT_ID, "iat": now, "exp": now + 300, "nonce": nonce}
        claims |= {"email": "ada@example.com", "email_verified": True} | self.claims
        claims = {name: value for name, value in claims.items() if value is not None}
        if self.forging is None:
            token = jwt.encode({"alg": "RS256", "kid": self.key.kid}, claims, self.key)
        else:
            token = forged(*self.forging, claims)
        access = secrets.token_urlsafe(16)
        self.seen += [token, access, form["code_verifier"]]
        return {"access_token": access, "token_type": "Bearer", "expires_in": 300, "id_token": token}


@contextmanager
def openid_provider() -> Iterator[Provider]:
    """Runs a provider on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            if parts.path == "/.well-known/openid-configuration":
                self._answer(provider.metadata())
            elif parts.path == "/keys":
                self._answer({"keys": [key.as_dict(private=False) for key in provider.published]})
            elif parts.path == "/authorize":
                self.send_response(302)
                self.send_header("Location", provider.authorize(_flat(parts.query)))
                self.send_header("Content-Length", "0")
                self.end_headers()
            else:
                self._answer({}, 404)

        def do_POST(self) -> None:
            form = _flat(self.rfile.read(int(self.headers["Content-Length"])).decode())
            found = provider.exchange(form, self.headers.get("Authorization", ""))
            if provider.status:
                self._answer({"error": "server_error", "error_description": form["code"]}, provider.status)
            elif found is None:
                self._answer({"error": "invalid_grant"}, 400)
            else:
                self._answer(found)

        def _answer(self, content: dict[str, Any], status: int = 200) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    provider = Provider(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def forged(algorithm: str, key: bytes, claims: dict[str, Any]) -> str:
    """Makes an id token that libraries refuse to make: signed with what everybody knows, or not at all."""
    parts = [json.dumps({"alg": algorithm, "kid": "first"}).encode(), json.dumps(claims).encode()]
    signed = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)
    signature = b"" if algorithm == "none" else hmac.digest(key, signed, "sha256")
    return (signed + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()


def _flat(text: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(text, keep_blank_values=True).items()}
