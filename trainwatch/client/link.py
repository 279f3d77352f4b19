"""One HTTP connection to a server, and what its refusals become."""

from __future__ import annotations

import ipaddress
import time
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2
import msgspec

from trainwatch import __version__

API: Final = "/api/v1"
_TRIES: Final = 4
_LONGEST_WAIT: Final = 10.0
_LATER: Final = frozenset({429, 502, 503, 504})


class ClientError(Exception):
    """The server refused something; the message is its own sentence.

    Attributes:
        status: The HTTP status; 0 when no answer came.
        request_id: What the server's log calls the request; empty when no answer came.
    """

    def __init__(self, message: str, status: int = 0, request_id: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.request_id = request_id


class NotFound(ClientError):
    """There is no such run, series or chart; or not for this token."""


class NotAllowed(ClientError):
    """The token is missing, not valid, or may not do this."""


class Unreachable(ClientError):
    """No answer came."""


class Link:
    """Asks a server.

    Args:
        url: The server's address.
        token: What to show; empty: nothing.
        timeout: Seconds to wait for an answer.
    """

    def __init__(self, url: str, token: str, timeout: float) -> None:
        headers = {"User-Agent": f"trainwatch-client/{__version__}"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self.url: Final = url.rstrip("/")
        # A proxy set for the outside world must not be asked for this machine.
        self._http = httpx2.Client(headers=headers, timeout=timeout, trust_env=not _is_here(self.url))

    def get(self, path: str, **query: Any) -> Any:
        """Asks for something as JSON. Parameters that are None are left out."""
        return msgspec.json.decode(self._send("GET", path, params=_present(query)).content)

    def get_packed(self, path: str, **query: Any) -> Any:
        """Asks for something as MessagePack."""
        return msgspec.msgpack.decode(self._send("GET", path, params=_present(query)).content)

    def post(self, path: str, body: Any) -> Any:
        """Sends something, and returns the answer."""
        return msgspec.json.decode(self._send("POST", path, json=body).content)

    def delete(self, path: str) -> None:
        """Deletes something."""
        self._send("DELETE", path)

    def close(self) -> None:
        """Closes the connection."""
        self._http.close()

    def _send(self, method: str, path: str, **more: Any) -> httpx2.Response:
        """Sends a request. Questions are asked again when the server is away for a moment.

        Raises:
            ClientError: The server refused, or did not answer.
        """
        tries = _TRIES if method == "GET" else 1
        wait = 0.25
        while True:
            tries -= 1
            try:
                answer = self._http.request(method, self.url + API + path, **more)
            except httpx2.TransportError as error:
                if not tries:
                    raise Unreachable(f"{self.url} does not answer: {error or type(error).__name__}") from error
            else:
                if answer.is_success:
                    return answer
                if not tries or answer.status_code not in _LATER:
                    raise _refusal(answer)
                told = answer.headers.get("retry-after", "")
                wait = max(wait, float(told)) if told.isdigit() else wait
            time.sleep(min(wait, _LONGEST_WAIT))
            wait *= 2


def _refusal(answer: httpx2.Response) -> ClientError:
    try:
        detail = str(msgspec.json.decode(answer.content)["detail"])
    except (msgspec.MsgspecError, KeyError, TypeError, UnicodeDecodeError):
        detail = f"{answer.url} answered {answer.status_code}; is it a TrainWatch server?"
    kinds: dict[int, type[ClientError]] = {401: NotAllowed, 403: NotAllowed, 404: NotFound}
    kind = kinds.get(answer.status_code, ClientError)
    return kind(detail, answer.status_code, answer.headers.get("x-request-id", ""))


def _present(query: dict[str, Any]) -> dict[str, Any]:
    return {name.rstrip("_"): value for name, value in query.items() if value is not None}


def _is_here(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
