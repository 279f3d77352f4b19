"""What a method that an address of the API does not know is answered.

Starlette looks at one route after the other, and tells of the first one's methods alone; and the web UI's route takes
every address.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from fastapi import FastAPI, HTTPException, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import compile_path

_KEY: Final = "methods_of"


def install(app: FastAPI) -> None:
    """Lets every 405 name all methods of its address."""
    table: list[tuple[re.Pattern[str], set[str]]] = []

    def methods_of(path: str) -> str:
        if not table:
            for template, operations in app.openapi()["paths"].items():
                table.append((compile_path(template)[0], {method.upper() for method in operations}))
        found: set[str] = set()
        for pattern, methods in table:
            if pattern.match(path):
                found |= methods
        return ", ".join(sorted(found))

    async def refuse(request: Request, error: Exception) -> Response:
        told = getattr(error, "headers", None) or {}
        path = request.scope["path"]
        allowed = methods_of(path)
        if not allowed and path.startswith("/api/"):
            # The web UI's route takes every address, but reads only: what is not there is not there, by any method.
            return JSONResponse({"detail": f"There is no {path[:200]}."}, status_code=404)
        allowed = allowed or told.get("Allow", "")
        return JSONResponse({"detail": "Method Not Allowed"}, status_code=405, headers={"Allow": allowed})

    setattr(app.state, _KEY, methods_of)
    app.add_exception_handler(405, refuse)


def check(request: Request) -> None:
    """Refuses an address of the API that knows other methods.

    Raises:
        HTTPException: 405.
    """
    methods_of: Callable[[str], str] | None = getattr(request.app.state, _KEY, None)
    if methods_of is not None and (allowed := methods_of(request.scope["path"])):
        raise HTTPException(405, headers={"Allow": allowed})
