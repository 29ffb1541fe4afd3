"""Whom a node's server lets in, and with how much; what it shares with the doors of `service`: what a token is, how a
client shows it, and what is this machine's own. Imports Starlette, no torch."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from harness.errors import UsageError
from harness.remote.messages import Refusal

LEAST_TOKEN = 20
"""Characters of a secret that a person chooses, at every door that others can reach."""
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
"""This machine's own names in a Host header."""


def checked_token(text: str, what: str = "the token") -> str:
    """`text` without the spaces around it. Raises UsageError, which says `what` it is, for one that could be guessed
    or that no client can send."""
    token = text.strip()
    if len(token) < LEAST_TOKEN or not token.isascii() or len(token.split()) != 1:
        raise UsageError(
            f"{what} must be one word of at least {LEAST_TOKEN} ASCII characters: `openssl rand -hex 32` makes one"
        )
    return token


def token_hash(text: str, what: str = "the token") -> bytes:
    """Of a token, or of a line `sha256:HEX` that is one already. Raises UsageError as `checked_token`."""
    text = text.strip()
    with contextlib.suppress(ValueError):
        if text.startswith("sha256:") and len(digest := bytes.fromhex(text.removeprefix("sha256:"))) == 32:
            return digest
    return hashlib.sha256(checked_token(text, what).encode()).digest()


def bearer(headers: Headers) -> str:
    """The token that a request shows; empty if it shows none."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def shows(headers: Headers, token_hash: bytes) -> bool:
    """Whether a request shows that token."""
    return hmac.compare_digest(hashlib.sha256(bearer(headers).encode()).digest(), token_hash)


def host_name(headers: Headers) -> str:
    """By which name the server is called, without the port."""
    host = headers.get("host", "")
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower()


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address to listen at."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


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
