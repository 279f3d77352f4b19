"""Tokens: of a project, for its admin; and all of them, for the installation's."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, HTTPException
from sqlalchemy import Row

from trainwatch.server.access import Principal, PrincipalDep
from trainwatch.server.access.issue import issue
from trainwatch.server.access.principal import SCOPES, parse_scopes
from trainwatch.server.schemas import Problem
from trainwatch.server.schemas.access import AnyTokenRequest, NewToken, TokenInfo, TokenRequest
from trainwatch.server.services import Services, ServicesDep
from trainwatch.server.store import access as store
from trainwatch.settings import is_name

router = APIRouter(tags=["access"])
_NONE: Final[dict[int | str, dict[str, Any]]] = {404: {"model": Problem, "description": "There is no such token."}}
_NO_PROJECT: Final[dict[int | str, dict[str, Any]]] = {
    404: {"model": Problem, "description": "There can be no such project."}
}


@router.get("/projects/{project}/tokens", responses=_NO_PROJECT)
def project_tokens(services: ServicesDep, project: str) -> list[TokenInfo]:
    """Returns the project's tokens, newest first; not those of all projects, which may use it too."""
    return _listed(services, _checked(project))


@router.post("/projects/{project}/tokens", status_code=201, responses=_NO_PROJECT)
def make_project_token(services: ServicesDep, principal: PrincipalDep, project: str, wanted: TokenRequest) -> NewToken:
    """Makes a token of the project. It is shown in this answer and never again."""
    return _make(services, principal, _checked(project), wanted)


@router.delete("/projects/{project}/tokens/{token}", status_code=204, responses=_NONE)
def revoke_project_token(services: ServicesDep, project: str, token: str) -> None:
    """Revokes a token of the project: it opens nothing any more, and its sessions end."""
    _revoke(services, token, project)


@router.get("/admin/tokens")
def tokens(services: ServicesDep) -> list[TokenInfo]:
    """Returns all tokens, newest first."""
    return _listed(services, None)


@router.post("/admin/tokens", status_code=201)
def make_token(services: ServicesDep, principal: PrincipalDep, wanted: AnyTokenRequest) -> NewToken:
    """Makes a token, of a project or of all. It is shown in this answer and never again."""
    if wanted.project and not is_name(wanted.project):
        raise HTTPException(422, f"There can be no project {wanted.project[:100]!r}.")
    return _make(services, principal, wanted.project, wanted)


@router.delete("/admin/tokens/{token}", status_code=204, responses=_NONE)
def revoke_token(services: ServicesDep, token: str) -> None:
    """Revokes any token: it opens nothing any more, and its sessions end."""
    _revoke(services, token, None)


def _checked(project: str) -> str:
    if not is_name(project):
        raise HTTPException(404, f"There can be no project {project[:100]!r}.")
    return project


def _listed(services: Services, project: str | None) -> list[TokenInfo]:
    with services.database.read() as connection:
        return [TokenInfo(**_told(row)) for row in store.listed_tokens(connection, project)]


def _make(services: Services, principal: Principal, project: str, wanted: TokenRequest) -> NewToken:
    with services.database.write() as connection:
        name, secret = issue(
            connection,
            name=wanted.name,
            project=project,
            scopes=wanted.scopes,
            days=wanted.days,
            by=principal.name,
            now=services.clock(),
        )
        row = store.token(connection, name)
    assert row is not None
    return NewToken(**_told(row), token=secret)


def _revoke(services: Services, token: str, project: str | None) -> None:
    with services.database.write() as connection:
        found = store.revoke_token(connection, token, services.clock(), project)
    services.keyring.forget()
    if not found:
        raise HTTPException(404, f"There is no token {token[:100]!r}.")


def _told(row: Row[Any]) -> dict[str, Any]:
    scopes = parse_scopes(row.scopes)
    told = {name: getattr(row, name) for name in TokenInfo.model_fields if name != "scopes"}
    return told | {"scopes": [scope for scope in SCOPES if scope in scopes]}
