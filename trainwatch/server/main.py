"""Runs the server."""

from __future__ import annotations

import gc
import logging
import socket
from collections.abc import Callable
from typing import Final

import uvicorn

from trainwatch.server import migrate
from trainwatch.server.app import create_app
from trainwatch.server.db import Database
from trainwatch.server.live.updates import Live
from trainwatch.server.services import Services
from trainwatch.server.settings import Refused, Settings
from trainwatch.server.telemetry import logs

logger = logging.getLogger(__name__)

_GRACE_SECONDS: Final = 2
_BACKLOG: Final = 2048


class Server:
    """A server that is ready to run: its settings are sound, its port is taken, its database is up to date.

    Args:
        settings: The server's settings.

    Attributes:
        services: Its parts.
        url: Its address.

    Raises:
        Refused: It cannot run like this.
    """

    def __init__(self, settings: Settings) -> None:
        settings.check()
        self._socket = _bind(settings)
        try:
            if settings.migrate_on_start:
                _migrate(settings)
            app = create_app(settings)
        except BaseException:
            self._socket.close()
            raise
        config = uvicorn.Config(
            app,
            log_config=None,  # logs.configure has done it
            log_level="warning",
            access_log=False,
            server_header=False,
            # uvicorn believes a proxy on this machine by default; whoever is on it could then be from anywhere.
            proxy_headers=bool(settings.trusted_proxies.strip()),
            forwarded_allow_ips=[one.strip() for one in settings.trusted_proxies.split(",") if one.strip()],
            timeout_graceful_shutdown=_GRACE_SECONDS,
            lifespan="on",
            ws="none",
        )
        self.services: Final[Services] = app.state.services
        self._uvicorn = _Uvicorn(config, self.services.live)
        host, port = self._socket.getsockname()[:2]
        self.url: Final = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def run(self, ready: Callable[[str], None] | None = None) -> None:
        """Serves until a signal or :meth:`stop`.

        Args:
            ready: Called with the server's address once it answers.
        """
        self._uvicorn.ready = None if ready is None else lambda: ready(self.url)
        self._uvicorn.run(sockets=[self._socket])

    def stop(self) -> None:
        """Asks the server to stop; from any thread."""
        self._uvicorn.should_exit = True


class _Uvicorn(uvicorn.Server):
    """uvicorn, which waits for open responses to end before it stops: so the live streams must end first."""

    def __init__(self, config: uvicorn.Config, live: Live) -> None:
        super().__init__(config)
        self._live = live
        self.ready: Callable[[], None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self.ready is not None:
            self.ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._live.close()
        await super().shutdown(sockets)


def serve(settings: Settings, *, ready: Callable[[str], None] | None = None) -> None:
    """Runs the server until SIGINT or SIGTERM. Prints nothing.

    Args:
        settings: The server's settings.
        ready: Called with the server's address once it answers.

    Raises:
        Refused: It cannot run like this; the message says why, for the person who started it.
    """
    logs.configure(settings)
    try:
        server = Server(settings)
        _spare_the_collector()
        server.run(ready)
    except KeyboardInterrupt:
        logger.debug("stopped by SIGINT")  # uvicorn raises it again once all is closed


def _spare_the_collector() -> None:
    """Has Python look for circular garbage less often, and not in what the start left, which stays for good.

    A shipment makes thousands of small objects that are no garbage yet: looking through them took up to a third of
    the time in which it was stored. The process is the server's alone.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _bind(settings: Settings) -> socket.socket:
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((settings.host, settings.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise Refused(
            f"TrainWatch cannot listen on {settings.host} port {settings.port} ({error.strerror or error}): another"
            " program may have it, perhaps another TrainWatch; choose a port with TRAINWATCH_PORT."
        ) from error


def _migrate(settings: Settings) -> None:
    """Migrates before anything listens, so that a refusal reaches the person who started it as a sentence."""
    try:
        database = Database(settings.database_url)
        try:
            migrate.upgrade(database)
        finally:
            database.close()
    except Refused:
        raise
    except Exception as error:
        logger.debug("cannot open the database", exc_info=True)
        kind = settings.database_url.partition(":")[0]
        raise Refused(f"TrainWatch cannot open its {kind} database: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:300]
