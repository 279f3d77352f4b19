"""What somebody sees of the live updates, and for how long."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from anyio import to_thread

from trainwatch.server.access.limits import Newest
from trainwatch.server.access.principal import Principal
from trainwatch.server.store import access as store

if TYPE_CHECKING:
    from trainwatch.server.services import Services

_RUNS: Final = 10_000


async def seen_by(
    services: Services, principal: Principal, changes: AsyncIterator[tuple[str, int] | None]
) -> AsyncIterator[tuple[str, int] | None]:
    """Yields the changes of runs that somebody sees, until what they showed is not valid any more.

    Args:
        services: The server's parts.
        principal: Who listens.
        changes: Run and version of all that changes; None when nothing did for a while.
    """
    seen: Newest[bool] = Newest(_RUNS)
    async for change in changes:
        if not await services.keyring.still(principal):
            return
        if change is not None and principal.project:
            sees = seen.get(change[0])
            if sees is None:
                sees = await to_thread.run_sync(_sees, services, principal, change[0])
                seen.put(change[0], sees)
            if not sees:
                continue
        yield change


def _sees(services: Services, principal: Principal, run: str) -> bool:
    with services.database.read() as connection:
        return principal.sees(store.projects_of(connection, [run]).get(run, ""))
