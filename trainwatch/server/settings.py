"""Settings of the server: every environment variable that it reads.

The training side has its own (:mod:`trainwatch.settings`).
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Final

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

DEFAULT_PORT: Final = 8420
_MIB: Final = 1024 * 1024


class Refused(Exception):
    """The server will not start like this. The message is one sentence for the person who started it."""


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
        lost_after: Seconds of silence after which a running run is called lost.
        liveness_seconds: Seconds between two looks for silent runs.
    """

    model_config = SettingsConfigDict(env_prefix="TRAINWATCH_", extra="ignore", frozen=True)

    host: str = "127.0.0.1"
    port: int = Field(default=DEFAULT_PORT, ge=0, le=65535)
    home: Path = Path("~/.trainwatch")
    database: str = ""
    token: SecretStr = SecretStr("")
    ingest_bytes: int = Field(default=16 * _MIB, ge=1024)
    ingest_expanded_bytes: int = Field(default=128 * _MIB, ge=1024)
    lost_after: float = Field(default=60.0, gt=0)
    liveness_seconds: float = Field(default=3.0, gt=0)

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

    def check(self) -> None:
        """Refuses what would be unsafe.

        Raises:
            Refused: The server would listen beyond this machine without a token.
        """
        if not self.secret and not is_loopback(self.host):
            raise Refused(
                f"TrainWatch will not listen on {self.host} without a token, because everybody who reaches this machine"
                " could then read your runs and halt them: set one with TRAINWATCH_TOKEN=$(openssl rand -hex 32), here"
                " and where you train, or listen on 127.0.0.1."
            )


def is_loopback(host: str) -> bool:
    """Tells whether only this machine can reach `host` (a name or an address, without port)."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
