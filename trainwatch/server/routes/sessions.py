"""Who is asking, and the sessions of browsers."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, HTTPException

from trainwatch.server.access import OPEN, SCOPES, PrincipalDep, anybody
from trainwatch.server.access.principal import parse_scopes
from trainwatch.server.schemas import Problem
from trainwatch.server.schemas.access import Session, SessionInfo
from trainwatch.server.services import ServicesDep
from trainwatch.server.store import access as store

router = APIRouter(tags=["access"])
_NONE: Final[dict[int | str, dict[str, Any]]] = {404: {"model": Problem, "description": "There is no such session."}}


@router.get("/session")
@anybody
def session(principal: PrincipalDep) -> Session:
    """Says who asks, and what they may do."""
    return Session(
        name=principal.name,
        project=principal.project,
        scopes=[scope for scope in SCOPES if principal.may(scope)],
        open=principal is OPEN,
        logged_in=bool(principal.session),
        expires_at=principal.expires_at,
    )


@router.get("/admin/sessions")
def sessions(services: ServicesDep, principal: PrincipalDep) -> list[SessionInfo]:
    """Returns the sessions of browsers that are not over, newest first."""
    with services.database.read() as connection:
        rows = store.listed_sessions(connection, services.clock())
    return [
        SessionInfo(
            id=row.id,
            name=row.name,
            project=row.project,
            scopes=[scope for scope in SCOPES if scope in parse_scopes(row.scopes)],
            token=row.token,
            sso=row.origin.startswith("oidc:"),
            created_at=row.created_at,
            expires_at=row.expires_at,
            last_used_at=row.last_used_at,
            own=row.id == principal.session,
        )
        for row in rows
    ]


@router.delete("/admin/sessions/{session}", status_code=204, responses=_NONE)
def end_session(services: ServicesDep, session: str) -> None:
    """Ends a session: its browser has to log in again."""
    with services.database.write() as connection:
        found = store.end_session(connection, session)
    services.keyring.forget()
    if not found:
        raise HTTPException(404, f"There is no session {session[:100]!r}.")
