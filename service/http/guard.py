"""What every request passes before anything reads it: host, origin, token, rate, size and type of its body.

A page on the internet that a browser at this machine shows can send requests here, also under a name of its own that
leads to this address. The Host header tells those names, the Origin header those pages; no page can forge either.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from fastapi import HTTPException
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from harness.remote.credentials import LOOPBACK, bearer, host_name
from service.http.access import Grant, Tokens
from service.http.errors import problem

COOKIE = "ringsmith_token"
"""Where a browser keeps its token: pages cannot send an Authorization header."""
MAX_BODY_BYTES = 4 << 20
_SAFE = ("GET", "HEAD", "OPTIONS")


@dataclass(frozen=True)
class Rules:
    hosts: frozenset[str] = frozenset(LOOPBACK)
    """Names by which this server may be called; empty: any, where a token is needed."""
    needs_token: bool = False
    """Otherwise whoever sends none may do everything."""
    public: tuple[str, ...] = ("/healthz", "/readyz")
    """Beginnings of paths for which nobody needs a token."""
    rate: float = 100.0
    """Requests a second of one token, or of one address without; 0: no limit."""
    burst: float = 500.0
    """So many at once."""


class Guard:
    def __init__(self, app: ASGIApp, tokens: Tokens, rules: Rules) -> None:
        self._app, self._tokens, self._rules = app, tokens, rules
        self._buckets = Buckets(rules.rate, rules.burst)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        headers = Headers(scope=scope)
        grant, refusal = await self._judged(scope, headers)
        if refusal is not None:
            status, detail, more = refusal
            return await _refuse(scope, receive, send, status, detail, more)
        scope.setdefault("state", {})["grant"] = grant
        if scope["type"] == "websocket":
            return await self._app(scope, receive, send)
        await _Body(self._app, scope, receive, send).run()

    async def _judged(self, scope: Scope, headers: Headers) -> tuple[Grant | None, Any]:
        """Who asks, or with what the request is refused: status, detail, headers."""
        rules, method = self._rules, scope.get("method", "GET")
        host = headers.get("host", "")
        if rules.hosts and host_name(headers) not in rules.hosts:
            return None, (403, "this server is not called by that name (Host header)", {})
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host and (method not in _SAFE or _is_socket(scope)):
            return None, (403, "requests of other sites' pages are not taken (Origin header)", {})
        if "\0" in scope["path"] or any("\0" in word for pair in _query(scope) for word in pair):
            return None, (400, "a NUL character in the address", {})
        token = _token(headers)
        grant = await self._grant(token) if token else None
        client = grant.name if grant and grant.name else (scope.get("client") or ("",))[0]
        if (wait_s := self._buckets.take(client)) > 0:
            return None, (429, "too many requests", {"Retry-After": str(int(wait_s) + 1)})
        if token and grant is None:
            return None, (401, "that token is not known, or was revoked", {"WWW-Authenticate": "Bearer"})
        if grant is None and not rules.needs_token:
            grant = Grant("", "admin")
        if grant is None and not scope["path"].startswith(rules.public):
            detail = "a token is needed: `ringsmith serve token create`, then Authorization: Bearer TOKEN"
            return None, (401, detail, {"WWW-Authenticate": "Bearer"})
        typed = not scope["path"].startswith("/api/") or _media_type(headers) == "application/json"
        if method not in _SAFE and _has_body(headers) and not typed:
            return None, (415, "send JSON, with Content-Type: application/json", {})
        if headers.get("content-length", "0").isdecimal() and int(headers.get("content-length", "0")) > MAX_BODY_BYTES:
            return None, (413, f"at most {MAX_BODY_BYTES} bytes", {})
        return grant, None

    async def _grant(self, token: str) -> Grant | None:
        known, grant = self._tokens.remembered(token)
        return grant if known else await asyncio.to_thread(self._tokens.grant, token)


class Buckets:
    """A token bucket for each client. Of one event loop."""

    def __init__(self, rate: float, burst: float, most: int = 10_000) -> None:
        self._rate, self._burst, self._most = rate, burst, most
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str, now: float | None = None) -> float:
        """Count one request; how many seconds it is too early, 0 if it may be made."""
        if not self._rate:
            return 0.0
        now = time.monotonic() if now is None else now
        left, then = self._buckets.pop(client, (self._burst, now))
        left = min(self._burst, left + (now - then) * self._rate)
        self._buckets[client] = (left - 1 if left >= 1 else left, now)
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return 0.0 if left >= 1 else (1 - left) / self._rate


class _Body:
    """One request of which the body is counted as it comes, and the answer gets its headers."""

    def __init__(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        self._app, self._scope, self._receive, self._send = app, scope, receive, send
        self._bytes, self._begun = 0, False
        self._too_large = HTTPException(413, f"at most {MAX_BODY_BYTES} bytes")

    async def run(self) -> None:
        try:
            await self._app(self._scope, self._counted, self._with_headers)
        except HTTPException as error:
            if error is not self._too_large:
                raise
            if not self._begun:
                await _refuse(self._scope, self._receive, self._send, 413, str(error.detail), {})

    async def _counted(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._bytes += len(message.get("body", b""))
            if self._bytes > MAX_BODY_BYTES:
                raise self._too_large  # FastAPI lets this kind pass where it reads a body
        return message

    async def _with_headers(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._begun = True
            headers = MutableHeaders(scope=message)
            headers.setdefault("X-Content-Type-Options", "nosniff")
            headers.setdefault("X-Frame-Options", "DENY")
            headers.setdefault("Referrer-Policy", "no-referrer")
            headers.setdefault("Cache-Control", "no-store")
        await self._send(message)


async def _refuse(
    scope: Scope, receive: Receive, send: Send, status: int, detail: str, headers: dict[str, str]
) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008, "reason": detail[:100]})
        return
    # What is left of the body is not read, so that nothing may follow on this connection.
    await problem(status, detail, {**headers, "Connection": "close"} if status == 413 else headers)(
        scope, receive, send
    )


def _is_socket(scope: Scope) -> bool:
    return bool(scope["type"] == "websocket")


def _query(scope: Scope) -> list[tuple[str, str]]:
    return parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)


def _token(headers: Headers) -> str:
    return bearer(headers) or cookie_parser(headers.get("cookie", "")).get(COOKIE, "")


def _has_body(headers: Headers) -> bool:
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def _media_type(headers: Headers) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()
