"""What a request needs, and whether it has it: the only place where that is decided.

It is told by the request's method and address:

===================================================  ================================================
``/api/ingest``                                      ingest
``/api/admin/…``                                     admin of all projects
``/api/projects/{project}/tokens``, ``/channels`` …  admin of the project
DELETE ``/api/runs/{run}``                           admin of the project: there is no way back
GET                                                  read
everything else                                      write
===================================================  ================================================

Somebody of one project sees no other. The project is in the path or the query (`project`), or that of a run named there
(`run`, `other`); a foreign one is not there for them: 404. A route that names neither is closed to them, unless it is
marked :func:`clipped` and shows each his own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from anyio import to_thread
from fastapi import Depends, HTTPException, Request, Security
from fastapi.security import APIKeyCookie, HTTPBearer

from trainwatch.server.access.keyring import KNOWN_SECONDS, NotAdmitted, TooManyGuesses
from trainwatch.server.access.limits import seconds
from trainwatch.server.access.principal import OPEN, Principal, Scope
from trainwatch.server.store import access as store

if TYPE_CHECKING:
    from trainwatch.server.services import Services

COOKIE: Final = "trainwatch_session"
ADMINISTERED: Final = frozenset({"tokens", "channels", "retention"})
"""Parts of a project that only its admin may read or change."""
TOO_OFTEN: Final = "This token asks for more than it may: wait a little."
_CLIPPED: Final = "__trainwatch_clipped__"
_ANYBODY: Final = "__trainwatch_anybody__"
_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])


def clipped(endpoint: _Endpoint) -> _Endpoint:
    """Marks a route of no single project that shows somebody of one project only that project's."""
    setattr(endpoint, _CLIPPED, True)
    return endpoint


def anybody(endpoint: _Endpoint) -> _Endpoint:
    """Marks a route that whoever is let in may use, with any scope and of any project."""
    setattr(endpoint, _ANYBODY, True)
    return clipped(endpoint)


# They only tell the OpenAPI document what :func:`admit` looks at.
_Bearer = Annotated[Any, Security(HTTPBearer(scheme_name="token", description="A token.", auto_error=False))]
_Cookie = Annotated[
    Any, Security(APIKeyCookie(name=COOKIE, scheme_name="session", description="Of a browser.", auto_error=False))
]


async def require(request: Request, _bearer: _Bearer = None, _cookie: _Cookie = None) -> Principal:
    """Lets a request pass or refuses it.

    Raises:
        HTTPException: 401; it shows no token or session that is valid. 403; it may not do that. 404; what it is about
            is of a project that it does not see. 429; it asks too often.
    """
    services: Services = request.app.state.services
    principal = await admit(request)
    scope = needed(request)
    wait = services.limits.wait(principal, scope, time.monotonic())
    if wait:
        raise too_much(TOO_OFTEN, wait)
    if scope is not None and not principal.may(scope):
        has = " and ".join(sorted(principal.scopes)) or "none"
        raise HTTPException(403, f"This needs the scope {scope}; what you showed has {has}.")
    if principal.project:
        await _stay_inside(request, services, principal, scope)
    return principal


async def admit(request: Request) -> Principal:
    """Returns who sent a request, whatever they want.

    Raises:
        HTTPException: 401; it shows no token or session that is valid. 429; too many wrong ones came from there.
    """
    services: Services = request.app.state.services
    keyring = services.keyring
    scheme, _, shown = request.headers.get("authorization", "").partition(" ")
    shown = shown.strip() if scheme.lower() == "bearer" else ""
    cookie = request.cookies.get(COOKIE, "")
    try:
        # Without a token of its own, the server lets everybody in who is on this machine; what has the form of a token
        # of the database is what it is, all the same.
        if keyring.is_open and not shown.startswith("tw_"):
            return OPEN
        if shown:
            return await keyring.of_token(shown, client_of(request))
        if cookie:
            return await keyring.of_session(cookie, client_of(request))
    except NotAdmitted as problem:
        raise _unauthorized(f"{problem} Get another one from whoever runs this server (TRAINWATCH_TOKEN).") from None
    except TooManyGuesses as problem:
        raise too_much(str(problem), problem.wait) from None
    raise _unauthorized(
        "This server wants a token: log in, or send it as 'Authorization: Bearer …' (TRAINWATCH_TOKEN)."
    )


def needed(request: Request) -> Scope | None:
    """Returns the scope that a request needs; None: any will do."""
    if getattr(request.scope.get("endpoint"), _ANYBODY, False):
        return None
    parts = _parts(request)
    if parts[:2] == ["api", "ingest"]:
        return "ingest"
    if parts[:2] == ["api", "admin"]:
        return "admin"
    if parts[:2] == ["api", "projects"] and len(parts) > 3 and parts[3] in ADMINISTERED:
        return "admin"
    if parts[:2] == ["api", "runs"] and len(parts) == 3 and request.method == "DELETE":
        return "admin"
    return "read" if request.method in ("GET", "HEAD") else "write"


def client_of(request: Request) -> str:
    """Returns the client's address; behind a trusted proxy that which the proxy tells (see ``trusted_proxies``)."""
    return request.client.host if request.client else ""


async def _stay_inside(request: Request, services: Services, principal: Principal, scope: Scope | None) -> None:
    params, query = request.path_params, request.query_params
    for project in [*_named(params, "project"), *query.getlist("project")]:
        if not principal.sees(project):
            raise HTTPException(404, f"There is no project {project[:100]!r}.")
    named = [*_named(params, "run"), *_named(params, "other"), *query.getlist("run"), *query.getlist("other")]
    if named:
        for run in named:
            owner = await _project_of(services, run)
            if owner is None or not principal.sees(owner):
                raise HTTPException(404, f"There is no run {run[:100]!r}.")
    inside = bool(_named(params, "project") or _named(params, "run"))
    if not inside and scope != "ingest" and not getattr(request.scope.get("endpoint"), _CLIPPED, False):
        raise HTTPException(403, "This is about all projects, and what you showed is of one.")


async def _project_of(services: Services, run: str) -> str | None:
    """Returns a run's project; known for some seconds, since many ask for what they follow again and again."""
    now = time.monotonic()
    known = services.projects.get(run)
    if known is not None and now < known[1]:
        return known[0]
    found = await to_thread.run_sync(_find_project, services, run)
    if found is not None:
        services.projects.put(run, (found, now + KNOWN_SECONDS))
    return found


def _find_project(services: Services, run: str) -> str | None:
    with services.database.read() as connection:
        return store.projects_of(connection, [run]).get(run)


def _named(params: dict[str, Any], name: str) -> list[str]:
    return [str(params[name])] if name in params else []


def _parts(request: Request) -> list[str]:
    path: str = request.scope["path"]
    return path.removeprefix(request.scope.get("root_path", "")).strip("/").split("/")


def too_much(problem: str, wait: float) -> HTTPException:
    """Returns the refusal of what is too much for now.

    Args:
        problem: What is too much, for people.
        wait: Seconds until it may be asked for again.
    """
    return HTTPException(429, problem, headers={"Retry-After": seconds(wait)})


def _unauthorized(problem: str) -> HTTPException:
    return HTTPException(401, problem, headers={"WWW-Authenticate": "Bearer"})


Allowed: Final = Depends(require)
PrincipalDep = Annotated[Principal, Allowed]
