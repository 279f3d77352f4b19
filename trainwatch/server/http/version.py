"""The version of the API.

``/api/v1`` is the address to use. ``/api`` without a version is version 1 too, and stays it: agents and browsers that
were made before there was a version ask there. A second version would live beside both, at ``/api/v2``.
"""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

API_VERSION: Final = 1
PLAIN: Final = "/api"
VERSIONED: Final = f"{PLAIN}/v{API_VERSION}"


class Versioned:
    """Leads ``/api/v1/…`` to the routes, which are at ``/api/…``; before anything else looks at the address.

    Args:
        app: The application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] == "http" and scope["path"].startswith(VERSIONED + "/"):
            scope = {**scope, "path": PLAIN + scope["path"].removeprefix(VERSIONED)}
            scope["raw_path"] = scope["path"].encode()
        await self._app(scope, receive, send)
