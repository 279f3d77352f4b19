"""The browser's way in: a token, or a word of the OpenID provider, for a session cookie."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final

from anyio import to_thread
from fastapi import APIRouter, HTTPException, Query, Request, Response
from starlette.responses import RedirectResponse

from trainwatch.server.access import COOKIE, NotAdmitted, TooManyGuesses, client_of
from trainwatch.server.access.oidc import FLOW_COOKIE, FLOW_SECONDS, SsoError
from trainwatch.server.access.required import TOO_OFTEN, too_much
from trainwatch.server.schemas import Login, Problem
from trainwatch.server.schemas.access import LoginWays, Sso
from trainwatch.server.services import Services, ServicesDep

router = APIRouter(tags=["access"])
_WRONG: Final[dict[int | str, dict[str, Any]]] = {
    401: {"model": Problem, "description": "The token is wrong, or not valid any more."},
    403: {"model": Problem, "description": "The token has not the scope read; or see above."},
}
_AWAY: Final[dict[int | str, dict[str, Any]]] = {
    303: {"description": "To the provider; back from it; or to the login page with what went wrong."},
    404: {"model": Problem, "description": "The server has no OpenID provider."},
}
_FLOW_PATH: Final = "/api/login/oidc"
Text = Annotated[str, Query(max_length=4000)]


@router.get("/login")
def login_ways(services: ServicesDep) -> LoginWays:
    """Says how one gets in."""
    sso = None if services.sso is None else Sso(name=services.settings.oidc_name)
    return LoginWays(open=services.keyring.is_open, sso=sso)


@router.post("/login", status_code=204, responses=_WRONG)
async def login(services: ServicesDep, request: Request, given: Login) -> Response:
    """Exchanges a token for a session cookie. Without a token on the server there is nothing to log in to."""
    response = Response(status_code=204)
    if services.keyring.is_open:
        return response
    try:
        principal = await services.keyring.of_token(given.token.strip(), client_of(request), guessing=True)
    except NotAdmitted as problem:
        raise HTTPException(401, str(problem)) from None
    except TooManyGuesses as problem:
        raise too_much(str(problem), problem.wait) from None
    wait = services.limits.wait(principal, None, time.monotonic())
    if wait:
        raise too_much(TOO_OFTEN, wait)
    if not principal.may("read"):
        raise HTTPException(403, "This token may ship and see nothing: log in with one that has the scope read.")
    made, expires_at = await to_thread.run_sync(services.keyring.open_session, principal)
    _set_cookie(response, request, services, made.secret, expires_at)
    return response


@router.post("/logout", status_code=204)
def logout(services: ServicesDep, request: Request) -> Response:
    """Ends the session and forgets its cookie."""
    response = Response(status_code=204)
    cookie = request.cookies.get(COOKIE, "")
    if cookie:
        services.keyring.close_session(cookie)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=_is_secure(request, services))
    return response


@router.get("/login/oidc", status_code=303, response_class=RedirectResponse, responses=_AWAY)
async def begin_sso(services: ServicesDep, request: Request, to: Text = "/") -> Response:
    """Sends the browser to the OpenID provider, to come back to the page `to` of this server."""
    if services.sso is None:
        raise HTTPException(404, "This server has no OpenID provider.")
    try:
        url, flow = await services.sso.begin(_callback(request), to)
    except SsoError as problem:
        return _to_login(problem)
    response = RedirectResponse(url, 303)
    # Lax, since the way back begins on the provider's site; strict cookies would stay at home.
    response.set_cookie(
        FLOW_COOKIE,
        flow,
        max_age=FLOW_SECONDS,
        path=_FLOW_PATH,
        httponly=True,
        samesite="lax",
        secure=_is_secure(request, services),
    )
    return response


@router.get("/login/oidc/callback", status_code=303, response_class=RedirectResponse, responses=_AWAY)
async def end_sso(
    services: ServicesDep, request: Request, code: Text = "", state: Text = "", error: Text = ""
) -> Response:
    """Takes what the OpenID provider says, and opens a session for whom it vouches for."""
    sso = services.sso
    if sso is None:
        raise HTTPException(404, "This server has no OpenID provider.")
    try:
        services.keyring.let_try(client_of(request))
    except TooManyGuesses as problem:
        raise too_much(str(problem), problem.wait) from None
    try:
        if error:
            raise SsoError("declined")
        person = await sso.end(_callback(request), request.cookies.get(FLOW_COOKIE, ""), code, state)
        made, expires_at = await to_thread.run_sync(
            services.keyring.open_sso_session, sso.issuer, person.name, person.project, person.scopes
        )
    except SsoError as problem:
        services.keyring.stranger(client_of(request))  # each costs a question to the provider
        response: Response = _to_login(problem)
    else:
        response = RedirectResponse(person.to, 303)
        _set_cookie(response, request, services, made.secret, expires_at)
    secure = _is_secure(request, services)
    response.delete_cookie(FLOW_COOKIE, path=_FLOW_PATH, httponly=True, samesite="lax", secure=secure)
    return response


def _set_cookie(response: Response, request: Request, services: Services, value: str, expires_at: float) -> None:
    response.set_cookie(
        COOKIE,
        value,
        max_age=max(0, int(expires_at - services.clock())),
        httponly=True,
        samesite="strict",
        secure=_is_secure(request, services),
    )


def _is_secure(request: Request, services: Services) -> bool:
    """Tells whether the browser came over TLS; a proxy that is not trusted cannot say so, the settings can."""
    return request.url.scheme == "https" or services.settings.public_url.startswith("https://")


def _callback(request: Request) -> str:
    return str(request.url_for("end_sso"))


def _to_login(problem: SsoError) -> RedirectResponse:
    return RedirectResponse(f"/?login={problem.reason}", 303)
