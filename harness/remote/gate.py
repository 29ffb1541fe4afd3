"""Whom a node's server lets in, and with how much. Imports Starlette, no torch."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from harness.remote.credentials import LOOPBACK, host_name, shows
from harness.remote.messages import Refusal


class Known:
    """Only clients with the token. Without one, only those that call this machine by a name of its own: a web page
    whose host name was made to point here does not."""

    def __init__(self, app: ASGIApp, token_hash: bytes | None) -> None:
        self._app, self._hash = app, token_hash

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            refused = None
            if self._hash is not None and not shows(headers, self._hash):
                refused = refusal(401, "usage", "the node refuses the token")
            elif self._hash is None and host_name(headers) not in LOOPBACK:
                refused = refusal(403, "usage", "without a token a node answers to its loopback names only")
            if refused is not None:
                await refused(scope, receive, send)
                return
        await self._app(scope, receive, send)


class Smaller:
    """Bodies up to a limit, whether they say how long they are or not."""

    def __init__(self, app: ASGIApp, most_bytes: int) -> None:
        self._app, self._most = app, most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        said = dict(scope["headers"]).get(b"content-length", b"0")
        if not said.isdigit() or int(said) > self._most:
            await refusal(413, "usage", f"requests have at most {self._most} bytes here")(scope, receive, send)
            return
        got = 0

        async def counted() -> Message:
            nonlocal got
            message = await receive()
            got += len(message.get("body", b""))
            if got > self._most:
                raise HTTPException(413, f"requests have at most {self._most} bytes here")
            return message

        await self._app(scope, counted, send)


def refusal(status: int, kind: str, message: str) -> JSONResponse:
    refusal = Refusal.model_validate({"kind": kind, "message": message})
    return JSONResponse(refusal.model_dump(), status_code=status)
