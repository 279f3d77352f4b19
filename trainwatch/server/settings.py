"""Settings of the server: every environment variable that it reads.

The training side has its own (:mod:`trainwatch.settings`).
"""

from __future__ import annotations

import ipaddress
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from trainwatch.server.delivery.addresses import Guard

DEFAULT_PORT: Final = 8420
_MIB: Final = 1024 * 1024
_LEAST_SECRET: Final = 12


class Refused(Exception):
    """The server will not start like this. The message is one sentence for the person who started it."""


class SsoAccess(BaseModel):
    """What people of a domain or of a group may do.

    Attributes:
        domain: Of their e-mail address, which the provider has verified; empty: any.
        group: That they are in; empty: any.
        project: The only project that they see; empty: all.
        scopes: What they may do there.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    domain: str = ""
    group: str = ""
    project: str = ""
    scopes: tuple[Literal["read", "write", "admin"], ...] = Field(default=("read",), min_length=1)


class Settings(BaseSettings):
    """What the environment says; every field is read from ``TRAINWATCH_<NAME>``.

    Attributes:
        host: Address to listen on. Anything but a loopback address needs a token.
        port: Port to listen on; 0 takes any free one.
        home: Where the SQLite database lies.
        database: SQLAlchemy address of the database; empty: SQLite at ``home/trainwatch.db``.
        token: What a client must show; empty: none, which is only allowed on loopback.
        ingest_bytes: Largest body of a shipment as it travels, compressed.
        ingest_expanded_bytes: Largest body of a shipment once expanded.
        requests_per_second: Requests that a token may make, on each server; twice as many at once. 0: no limit.
        ingest_bytes_per_second: Bytes that a token may ship, expanded, on each server. 0: no limit.
        trusted_proxies: Addresses and networks of proxies in front, separated by commas, whose ``X-Forwarded-For`` and
            ``X-Forwarded-Proto`` are believed; ``*``: anybody's.
        oidc_issuer: Address of the OpenID provider that people log in with; empty: with tokens only.
        oidc_client_id: What the provider calls this server.
        oidc_client_secret: What this server proves itself with there.
        oidc_name: What the button is called.
        oidc_groups_claim: The claim of the id token that lists a person's groups.
        oidc_access: Who may do what; the first entry that fits holds, and without one that fits nobody gets in.
        late_after: Seconds of silence after which a running run is called late.
        public_url: Where people reach the server, like ``https://trainwatch.example.org``: for the links in messages.
        alert_private_hosts: Names, addresses and networks, separated by commas, that alerts may be sent to although
            they are not public.
        lost_after: Seconds of silence after which a late run is called lost.
        liveness_seconds: Seconds between two looks for silent runs.
        lease_seconds: How long a server keeps the work that only one server may do after it was last heard itself.
        migrate_on_start: Migrate the database when the server starts; where a step of the deployment does, no.
        log_format: Form of the log: ``text`` for people, ``json`` for what collects logs.
        log_level: The least that is logged.
        access_log: Log every request, not only those that were refused.
        metrics_public: Let anybody read ``/metrics``, without a token.
        metrics_series: How many series of running runs ``/metrics`` shows the last values of; 0: none.
    """

    model_config = SettingsConfigDict(env_prefix="TRAINWATCH_", extra="ignore", frozen=True)

    host: str = "127.0.0.1"
    port: int = Field(default=DEFAULT_PORT, ge=0, le=65535)
    home: Path = Path("~/.trainwatch")
    database: str = ""
    token: SecretStr = SecretStr("")
    ingest_bytes: int = Field(default=16 * _MIB, ge=1024)
    ingest_expanded_bytes: int = Field(default=128 * _MIB, ge=1024)
    requests_per_second: float = Field(default=1000.0, ge=0)
    ingest_bytes_per_second: int = Field(default=128 * _MIB, ge=0)
    trusted_proxies: str = ""
    oidc_issuer: str = ""
    oidc_client_id: str = ""
    oidc_client_secret: SecretStr = SecretStr("")
    oidc_name: str = "single sign-on"
    oidc_groups_claim: str = "groups"
    oidc_access: tuple[SsoAccess, ...] = ()
    public_url: str = ""
    alert_private_hosts: str = ""
    late_after: float = Field(default=20.0, gt=0)
    lost_after: float = Field(default=60.0, gt=0)
    liveness_seconds: float = Field(default=3.0, gt=0)
    lease_seconds: float = Field(default=6.0, gt=0)
    migrate_on_start: bool = True
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    access_log: bool = False
    metrics_public: bool = False
    metrics_series: int = Field(default=0, ge=0, le=100_000)

    @property
    def database_url(self) -> str:
        """The database's address, with the driver that TrainWatch brings."""
        if not self.database:
            return f"sqlite:///{self.home.expanduser() / 'trainwatch.db'}"
        for scheme in ("postgres://", "postgresql://"):
            if self.database.startswith(scheme):
                return "postgresql+psycopg://" + self.database.removeprefix(scheme)
        return self.database

    @property
    def secret(self) -> str:
        """The token in the clear; empty when none is set."""
        return self.token.get_secret_value()

    @property
    def alert_private(self) -> tuple[str, ...]:
        """What alerts may be sent to although it is not public."""
        return tuple(part.strip() for part in self.alert_private_hosts.split(",") if part.strip())

    def check(self) -> None:
        """Refuses what would be unsafe.

        Raises:
            Refused: The server would listen beyond this machine without a token, or with one that can be guessed;
                or settings do not fit each other.
        """
        if not self.secret and not is_loopback(self.host):
            raise Refused(
                f"TrainWatch will not listen on {self.host} without a token, because everybody who reaches this machine"
                " could then read your runs and halt them: set one with TRAINWATCH_TOKEN=$(openssl rand -hex 32), here"
                " and where you train, or listen on 127.0.0.1."
            )
        if len(self.secret) < _LEAST_SECRET and not is_loopback(self.host):
            raise Refused(
                f"TRAINWATCH_TOKEN has {len(self.secret)} characters, and everybody who reaches {self.host} may guess"
                f" it: take one of at least {_LEAST_SECRET}, such as TRAINWATCH_TOKEN=$(openssl rand -hex 32), here and"
                " where you train."
            )
        if self.oidc_issuer:
            self._check_oidc()
        self._check_delivery()

    def _check_delivery(self) -> None:
        try:
            Guard(self.alert_private)
        except ValueError as error:
            raise Refused(f"TRAINWATCH_ALERT_PRIVATE_HOSTS cannot be read: {error}.") from None
        if self.public_url and not self.public_url.startswith(("http://", "https://")):
            raise Refused(
                f"TRAINWATCH_PUBLIC_URL is the address by which people reach this server, with https:// or http://, not"
                f" {self.public_url[:100]!r}."
            )

    def _check_oidc(self) -> None:
        if not self.secret:
            raise Refused(
                "TRAINWATCH_OIDC_ISSUER is set and TRAINWATCH_TOKEN is not: without a token of its own, everybody is"
                " let in anyhow."
            )
        parts = urlsplit(self.oidc_issuer)
        if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
            raise Refused(
                "TRAINWATCH_OIDC_ISSUER must be an https:// address: who reads along could log in as anybody."
            )
        if not self.oidc_client_id:
            raise Refused("TRAINWATCH_OIDC_ISSUER is set and TRAINWATCH_OIDC_CLIENT_ID is not: set both.")
        if not self.oidc_access:
            raise Refused(
                "TRAINWATCH_OIDC_ISSUER is set and TRAINWATCH_OIDC_ACCESS is not, so nobody could log in: say who may,"
                """ for example '[{"domain": "example.com", "scopes": ["read"]}]'."""
            )
        for one in self.oidc_access:
            if not one.domain and not one.group:
                raise Refused("Each entry of TRAINWATCH_OIDC_ACCESS needs a domain or a group.")
        if find_spec("authlib") is None:
            raise Refused("Logging in with an OpenID provider needs another package: pip install 'trainwatch[oidc]'.")


def is_loopback(host: str) -> bool:
    """Tells whether only this machine can reach `host` (a name or an address, without port)."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
