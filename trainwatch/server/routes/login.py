"""The browser's way in: a token for a session cookie."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, HTTPException, Request, Response

from trainwatch.server import access
from trainwatch.server.schemas import Login, Problem
from trainwatch.server.services import ServicesDep

router = APIRouter(tags=["access"])
_WRONG: Final[dict[int | str, dict[str, Any]]] = {401: {"model": Problem, "description": "The token is wrong."}}


@router.post("/login", status_code=204, responses=_WRONG)
def login(services: ServicesDep, request: Request, given: Login) -> Response:
    """Exchanges the token for a session cookie. Without a token on the server there is nothing to log in to."""
    token = services.settings.secret
    response = Response(status_code=204)
    if not token:
        return response
    if not access.is_token(given.token.strip(), token):
        raise HTTPException(401, "This is not the server's token.")
    response.set_cookie(
        access.COOKIE,
        access.session(token, services.clock()),
        max_age=access.SESSION_SECONDS,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response


@router.post("/logout", status_code=204)
def logout() -> Response:
    """Forgets the session cookie."""
    response = Response(status_code=204)
    response.delete_cookie(access.COOKIE, httponly=True, samesite="strict")
    return response
