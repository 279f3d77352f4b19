"""Serves the built web UI from ``trainwatch/server/static``."""

from __future__ import annotations

import mimetypes
from hashlib import sha256
from pathlib import Path
from typing import Final

from fastapi import APIRouter, HTTPException, Request, Response

from trainwatch.server.http import methods

DIRECTORY: Final = Path(__file__).parents[1] / "static"
_ABSENT: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><title>TrainWatch</title>
<body style="font:16px/1.5 system-ui;max-width:40rem;margin:4rem auto;padding:0 1rem">
<h1>TrainWatch is running</h1>
<p>The web UI is not built in this installation. In a clone, run <code>make web</code>, or
<code>TRAINWATCH_WEB=require pip install .</code>; both bring their own Node.</p>
<p>The API is here all the same: <a href="/api/runs">/api/runs</a>.</p>
</body></html>
"""


def router(directory: Path | None = None) -> APIRouter:
    """Makes the routes for everything outside ``/api``.

    Args:
        directory: Where the built UI lies, :data:`DIRECTORY` by default; it may come and go while the server runs.
    """
    routes = APIRouter(include_in_schema=False)
    root = DIRECTORY if directory is None else directory

    @routes.api_route("/{path:path}", methods=["GET", "HEAD"])
    def file(request: Request, path: str) -> Response:
        if path == "api" or path.startswith("api/"):
            methods.check(request)
            raise HTTPException(404, f"There is no /{path[:200]}.")
        found = _find(root, path)
        if found is None:
            return Response(_ABSENT, media_type="text/html", headers={"Cache-Control": "no-cache"})
        content = found.read_bytes()
        kind = mimetypes.guess_type(found.name)[0] or "application/octet-stream"
        if found.parent.name == "assets":  # their names hold a hash of their content
            return Response(content, media_type=kind, headers={"Cache-Control": "public, max-age=31536000, immutable"})
        tag = f'"{sha256(content).hexdigest()[:32]}"'
        headers = {"Cache-Control": "no-cache", "ETag": tag}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=kind, headers=headers)

    return routes


def _find(directory: Path, path: str) -> Path | None:
    """Returns the file to show: the one asked for, or the UI's page, which knows the other addresses.

    Raises:
        HTTPException: 404; an asset that is not there (of an older build, say) must not be answered with the page.
    """
    if "\0" in path:  # no name of a file, and the system's calls raise
        raise HTTPException(404, "There is no such file.")
    root = directory.resolve()
    wanted = (root / path).resolve()
    if path and wanted.is_relative_to(root) and wanted.is_file():
        return wanted
    if Path(path).suffix in (".js", ".css", ".map", ".woff2", ".png", ".ico", ".svg"):
        raise HTTPException(404, f"There is no /{path[:200]}.")
    index = root / "index.html"
    return index if index.is_file() else None
