"""How a browser comes in: it is led to a page that asks for a token where one is needed, and every page is told to load
nothing from other hosts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from pydantic import Field
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from harness.types import Frozen
from service.http.access import Tokens
from service.web import LOGIN

_DAYS = 30
# NiceGUI's pages bring scripts of their own inline and compile their templates in the browser.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self' data:; connect-src 'self'; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
_LOGIN_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_STATIC = Path(__file__).parent / "static"


class Credentials(Frozen):
    token: str = Field(max_length=1000)


def router(tokens: Tokens, cookie: str) -> APIRouter:
    routes = APIRouter(include_in_schema=False)

    @routes.get(LOGIN)
    def ask() -> Response:
        return FileResponse(_STATIC / "login.html", headers={"Content-Security-Policy": _LOGIN_POLICY})

    @routes.get(f"{LOGIN}.js")
    def script() -> Response:
        return FileResponse(_STATIC / "login.js")

    @routes.post(LOGIN)
    async def enter(given: Credentials, request: Request) -> Response:
        if await asyncio.to_thread(tokens.grant, given.token) is None:
            return JSONResponse({"error": "unauthorized", "detail": "that token is not known, or was revoked"}, 401)
        answer = Response(status_code=204)
        answer.set_cookie(
            cookie,
            given.token,
            max_age=_DAYS * 86_400,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    @routes.post("/logout")
    def leave() -> Response:
        answer = Response(status_code=204)
        answer.delete_cookie(cookie, httponly=True, samesite="strict")
        return answer

    return routes


class Door:
    """Around everything else, the guard included."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        if scope["path"].startswith(LOGIN):  # a cookie that is known no more must not keep anybody out
            scope = {**scope, "headers": [pair for pair in scope["headers"] if pair[0] != b"cookie"]}
        led_away = False
        wants_page = scope["method"] == "GET" and "text/html" in Headers(scope=scope).get("accept", "")

        async def answered(message: Message) -> None:
            nonlocal led_away
            if message["type"] == "http.response.start":
                if message["status"] == 401 and wants_page and scope["path"] != LOGIN:
                    led_away = True
                    target = f"{LOGIN}?next={quote(scope['path'], safe='/')}"
                    headers = [(b"location", target.encode()), (b"content-length", b"0")]
                    await send({"type": "http.response.start", "status": 303, "headers": headers})
                    await send({"type": "http.response.body", "body": b""})
                    return
                headers_of = MutableHeaders(scope=message)
                if headers_of.get("content-type", "").startswith("text/html"):
                    headers_of.setdefault("Content-Security-Policy", _POLICY)
            if not led_away:
                await send(message)

        await self._app(scope, receive, answered)
