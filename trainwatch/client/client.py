"""The server as a whole."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Literal
from urllib.parse import quote

from trainwatch import settings
from trainwatch.client.link import Link
from trainwatch.client.listing import Listing
from trainwatch.client.run import Run

State = Literal["running", "late", "lost", "finished", "halted", "failed", "died"]
_PAGE: Final = 500


class Client:
    """Reads a TrainWatch server.

    Args:
        url: The server's address; by default that of ``TRAINWATCH_SERVER``, else ``http://127.0.0.1:8420``.
        token: A token that may read (to halt: write; to delete: admin); by default that of ``TRAINWATCH_TOKEN``.
        timeout: Seconds to wait for an answer.

    Raises:
        ValueError: The address is none, or an environment variable has a value that means nothing.
    """

    def __init__(self, url: str | None = None, token: str | None = None, *, timeout: float = 30.0) -> None:
        chosen = settings.load()
        address = chosen.server if url is None else url
        if not address.startswith(("http://", "https://")):
            raise ValueError(f"{address!r} is no address of a server: begin with http:// or https://")
        self._link = Link(address, chosen.token if token is None else token, timeout)

    def __enter__(self) -> Client:
        """Returns the client; it is closed when the block ends."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the client."""
        self.close()

    def __repr__(self) -> str:
        """Says which server it reads."""
        return f"Client({self._link.url!r})"

    def close(self) -> None:
        """Closes the connection."""
        self._link.close()

    def projects(self) -> list[str]:
        """Returns the projects that have runs."""
        return list(self._link.get("/runs", limit=1)["projects"])

    def runs(self, project: str | None = None, state: State | None = None, *, limit: int | None = None) -> Listing[Run]:
        """Returns runs, newest first.

        Args:
            project: Only this project's.
            state: Only those in this state.
            limit: The newest so many; None: all.
        """
        found: dict[str, Run] = {}  # by id: a run that begins while we ask moves the others by one
        offset = 0
        while limit is None or len(found) < limit:
            page = self._link.get("/runs", project=project, state=state, limit=_PAGE, offset=offset)["runs"]
            found |= {info["id"]: Run(self._link, info) for info in page}
            offset += len(page)
            if len(page) < _PAGE:
                break
        return Listing(list(found.values())[:limit])

    def run(self, run: str) -> Run:
        """Returns a run with all that is known of it.

        Args:
            run: Its id.

        Raises:
            NotFound: There is no such run.
        """
        return Run(self._link, self._link.get(f"/runs/{quote(run, safe='')}"))
