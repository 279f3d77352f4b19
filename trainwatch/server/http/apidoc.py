"""The OpenAPI document: what FastAPI makes of the routes, and what a reader needs besides."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from starlette.responses import JSONResponse

from trainwatch.server.http.version import API_VERSION, PLAIN, VERSIONED

_ABOUT: Final = f"""Reads the runs that TrainWatch watches, and changes what is set for them.

Every address begins with `{VERSIONED}`. Within a version fields, parameters and operations are added, never taken away
or changed in meaning: ignore fields that you do not know. `{PLAIN}` without a version is version 1 too.

Show a token as `Authorization: Bearer …`. A refusal is JSON with one field, `detail`: a sentence that says what to do.
Quote the `X-Request-ID` of an answer when you ask about it; the server's log has the same. Times are Unix seconds,
sizes are bytes. NaN and ±Infinity, which JSON has no form for, are the strings `"NaN"`, `"Infinity"` and `"-Infinity"`.
"""
TAGS: Final = {
    "runs": "Runs, their figures, what happened in them, and what people want of them.",
    "series": "A run's series: what there is, and their points.",
    "alerts": "Alerts of a run: what is known of them, and their silencing.",
    "channels": "Where alerts are sent to: channels, silences of a project, and what became of each delivery.",
    "rules": "The rules, what a project sets of them, and how they would have judged past runs.",
    "projects": "Projects, and how long they keep their data.",
    "data": "What is kept for how long; archives and deletion.",
    "access": "Tokens, sessions and login.",
    "ingest": "Where agents ship to.",
    "server": "The server itself.",
    "admin": "The installation as a whole.",
}
_EXAMPLES: Final = {
    "run": "0123456789abcdef",
    "other": "fedcba9876543210",
    "project": "default",
    "metric": "train/loss",
    "chart": "loss",
    "rule": "loss_spike",
    "rank": 0,
    "device": "cuda:0",
    "token": "k3v9x2",
    "session": "p7d4m1",
}
_SCHEMES: Final = {
    "token": {"type": "http", "scheme": "bearer", "description": "A token, or the server's own (TRAINWATCH_TOKEN)."},
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "trainwatch_session",
        "description": "What a browser gets when somebody logs in.",
    },
}
_WITHOUT: Final = tuple(f"{PLAIN}/{name}" for name in ("health", "ready", "login", "logout"))
_METHODS: Final = frozenset({"get", "put", "post", "delete", "patch", "head", "options"})


def describe(app: FastAPI) -> dict[str, Any]:
    """Makes the document, with the addresses as the routes have them (``/api/…``).

    Args:
        app: The application.
    """
    schema = get_openapi(
        title=app.title,
        # Of the API, not of the package: a release that does not change the API does not change the document.
        version=str(API_VERSION),
        description=_ABOUT,
        routes=app.routes,
    )
    used = set()
    for path, _method, operation in operations(schema):
        _complete(operation)
        used.update(operation.get("tags", ()))
        if not path.startswith(_WITHOUT):
            operation.setdefault("security", [{name: []} for name in _SCHEMES])
    schema.setdefault("components", {})["securitySchemes"] = deepcopy(_SCHEMES)
    schema["tags"] = [{"name": name, "description": text} for name, text in TAGS.items() if name in used]
    return schema


def operations(schema: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yields path, method and operation of all that a document describes."""
    for path, item in schema["paths"].items():
        for method, operation in item.items():
            if method in _METHODS:
                yield path, method, operation


def router() -> APIRouter:
    """Makes the route that serves the document, with the addresses that others should use (``/api/v1/…``)."""
    routes = APIRouter(include_in_schema=False)

    @routes.get(f"{PLAIN}/openapi.json")
    def openapi(request: Request) -> Response:
        schema = dict(request.app.openapi())
        schema["paths"] = {_versioned(path): item for path, item in schema["paths"].items()}
        return JSONResponse(schema, headers={"Cache-Control": "no-cache"})

    return routes


def _versioned(path: str) -> str:
    return VERSIONED + path.removeprefix(PLAIN) if path.startswith(PLAIN + "/") else path


def _complete(operation: dict[str, Any]) -> None:
    """Takes an operation's summary from its description, and gives its parameters examples."""
    about = operation.get("description", "").strip()
    first, _, rest = about.partition("\n\n")
    first = " ".join(first.split()).replace("``", "`")
    if first:
        sentence, stop, more = first.partition(". ")
        operation["summary"] = sentence.rstrip(".")
        operation["description"] = (f"{sentence}{stop}{more}" + (f"\n\n{rest}" if rest else "")).strip()
    for parameter in operation.get("parameters", ()):
        example = _EXAMPLES.get(parameter["name"])
        if example is not None and "example" not in parameter and "examples" not in parameter.get("schema", {}):
            parameter["example"] = example
