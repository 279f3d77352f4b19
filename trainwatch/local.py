"""What listens on this machine: ports, and TrainWatch's own servers. For the command line; standard library only."""

from __future__ import annotations

import json
import socket
import urllib.request
from typing import Any


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Goes nowhere else: the token is for the server that was named."""

    def redirect_request(self, *_: Any) -> None:
        """Follows nothing; the redirect itself is the answer, an error."""


# A proxy set for the outside world must not be asked for this machine.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), NoRedirect)


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Tells whether a server could listen on a port; also True where the address itself makes no sense."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError:
        return True
    with socket.socket(family, kind, protocol) as probe:
        # As servers do, so that connections of an earlier one that still linger do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError:
            return False
    return True


def free_port() -> int:
    """Returns a port of the loopback address that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ask(url: str, token: str = "", timeout: float = 2.0) -> dict[str, Any]:
    """Asks a TrainWatch server something.

    Args:
        url: The whole address, e.g. ``http://127.0.0.1:8420/api/health``.
        token: The server's token; empty for none.
        timeout: Seconds to wait.

    Returns:
        The answer; empty when there is none, or none that TrainWatch would give.
    """
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with _opener.open(urllib.request.Request(url, headers=headers), timeout=timeout) as response:
            answer = json.load(response)
    except (OSError, ValueError):
        return {}
    return answer if isinstance(answer, dict) else {}


def version_at(url: str) -> str:
    """Returns the version of the TrainWatch server at `url`; empty when none is there."""
    health = ask(f"{url}/api/health")
    return str(health.get("version", "")) if {"status", "version", "database"} <= set(health) else ""
