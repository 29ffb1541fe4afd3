"""Runs over streamable HTTP: one for each session, at most so many at once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import uvicorn
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp.types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from harness.errors import UsageError
from harness.remote.credentials import LOOPBACK, is_loopback, shows
from runs.events import RunConfig
from service.mcp.seat import Opener, Seat
from service.mcp.server import GONE, make

PATH = "/mcp"
MAX_SESSIONS = 1000
"""A session without a run costs next to nothing, and clients open some only to look."""
_SESSION = "mcp-session-id"
_LOOK_S = 1.0
LEFT = (
    "This session made no call for {idle_s:.0f} s, so its run has been ended and graded. Connect anew for another run."
)


@dataclass(frozen=True)
class Address:
    host: str
    port: int
    """0: any that is free."""
    names: Sequence[str] = ()
    """By which else clients call this host; requests for other names are refused, against DNS rebinding."""
    token_hash: bytes | None = None
    """Of what clients must send as `Authorization: Bearer`; None: nothing."""


@dataclass(frozen=True)
class Rules:
    most: int
    """Runs at once."""
    idle_s: float
    """Without a call, after which a run ends."""


class Sessions:
    """The runs of the sessions. A run ends when its client ends the session, or makes no call for too long."""

    def __init__(self, open_run: Opener, rules: Rules) -> None:
        self._open_run, self.rules = open_run, rules
        self._places = threading.BoundedSemaphore(rules.most)
        self._seats: dict[str, Seat] = {}
        self._leaving: dict[asyncio.Task[Any], Seat] = {}
        self._left: set[str] = set()
        self._stopping = False

    def seat_of(self, context: Any) -> Seat:
        """Raises MCPError for a request without a session, or with one that has been left. Versions of the protocol
        that know no sessions are told which do."""
        session = context.request.headers.get(_SESSION) if context.request else None
        if session is None or context.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS:
            raise no_session(context.protocol_version)
        if self._stopping:
            raise MCPError(types.INTERNAL_ERROR, "Ringsmith was told to stop")
        if session in self._left:
            raise MCPError(types.INVALID_REQUEST, LEFT.format(idle_s=self.rules.idle_s))
        if session not in self._seats:
            self._seats[session] = Seat(self._open_run, self._places, self.rules.most)
        return self._seats[session]

    def leave(self, session: str) -> None:
        """The session is over: end its run, if there is one, in the background."""
        self._left.discard(session)
        if seat := self._seats.pop(session, None):
            task = asyncio.ensure_future(seat.leave())
            self._leaving[task] = seat
            task.add_done_callback(lambda done: self._leaving.pop(done))

    async def watch(self) -> None:
        """Leave the idle ones, for ever."""
        while True:
            await asyncio.sleep(min(_LOOK_S, self.rules.idle_s / 2))
            for session, seat in list(self._seats.items()):
                if not seat.busy and time.monotonic() - seat.used_at > self.rules.idle_s:
                    self.leave(session)
                    self._left.add(session)

    async def stop(self) -> None:
        """Break off all runs: they end as interrupted and can be resumed. Those that were being graded are, unless
        there is a `hurry`."""
        self._stopping = True
        for session, seat in list(self._seats.items()):
            seat.interrupt()
            self.leave(session)
        while self._leaving:
            await asyncio.wait(self._leaving)

    def hurry(self) -> None:
        """Break off grading too."""
        for seat in self._leaving.values():
            seat.interrupt()


def no_session(version: str) -> MCPError:
    supported = list(HANDSHAKE_PROTOCOL_VERSIONS)
    data = {"supported": supported, "requested": version}
    return MCPError(types.UNSUPPORTED_PROTOCOL_VERSION, "a run needs a session: begin with `initialize`", data)


def serve(
    config: RunConfig, open_run: Opener, address: Address, rules: Rules, *, agent: str, said: Callable[[str], None]
) -> None:
    """Until SIGINT or SIGTERM. `said` gets the URL once it is served. Raises UsageError for an address that cannot be
    had, and for one that others can reach without a token."""
    if not is_loopback(address.host) and address.token_hash is None:
        raise UsageError(f"{address.host} can be reached by others: set RINGSMITH_MCP_TOKEN, or serve 127.0.0.1")
    sessions = Sessions(open_run, rules)
    app = application(make(config, sessions.seat_of, agent), sessions, address)
    with _listen(address) as listening:
        host, port = address.host, listening.getsockname()[1]
        said(f"http://{f'[{host}]' if ':' in host else host}:{port}{PATH}")
        asyncio.run(_serve(app, sessions, listening))


async def _serve(app: ASGIApp, sessions: Sessions, listening: socket.socket) -> None:
    server = _Uvicorn(
        uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=2, lifespan="on")
    )
    stop = asyncio.Event()

    def told() -> None:
        if stop.is_set():
            sessions.hurry()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, told)
    serving = asyncio.ensure_future(server.serve([listening]))
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait({serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
    # Calls that are under way are answered before connections are closed.
    await sessions.stop()
    server.should_exit = True
    await serving
    stopped.cancel()


def application(server: Server[Any], sessions: Sessions, address: Address) -> ASGIApp:
    async def discover(context: Any, asked: Any) -> types.DiscoverResult:
        raise no_session(context.protocol_version)

    # Clients of the era without sessions ask this first, and fall back to one with sessions when it is refused.
    server.add_request_handler("server/discover", types.RequestParams, discover)
    hosts = [*LOOPBACK, address.host, socket.gethostname(), *address.names]
    manager = StreamableHTTPSessionManager(
        server,
        # Origins are those of web pages: none has business here but one of the same host.
        security_settings=TransportSecuritySettings(
            allowed_hosts=[form for host in hosts for form in (host, f"{host}:*")],
            allowed_origins=[f"http{s}://{host}{port}" for s in ("", "s") for host in hosts for port in ("", ":*")],
        ),
        session_idle_timeout=sessions.rules.idle_s,
        max_sessions=MAX_SESSIONS,
    )

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        session, complete = Headers(scope=scope).get(_SESSION), False

        async def watched(message: Message) -> None:
            nonlocal complete
            if scope["method"] == "DELETE" and session and message.get("status", 500) < 300:
                sessions.leave(session)
            await send(message)
            complete |= message["type"] == "http.response.body" and not message.get("more_body")

        try:
            await manager.handle_request(scope, receive, watched)
        finally:
            scope[GONE] = not complete

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with manager.run():
            watching = asyncio.ensure_future(sessions.watch())
            try:
                yield
            finally:
                watching.cancel()

    return Starlette(routes=[Route(PATH, _Guarded(handle, address.token_hash))], lifespan=lifespan)


class _Guarded:
    """Lets those through who know the token."""

    def __init__(self, app: ASGIApp, token_hash: bytes | None) -> None:
        self._app, self._hash = app, token_hash

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._hash is not None and not shows(Headers(scope=scope), self._hash):
            refused = Response("a token is needed\n", 401, {"WWW-Authenticate": "Bearer"})
            return await refused(scope, receive, send)
        await self._app(scope, receive, send)


class _Uvicorn(uvicorn.Server):
    """Leaves signals to us: runs are ended before connections."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(address: Address) -> socket.socket:
    try:
        family, *_, where = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(where[:2], family=family)
    except OSError as error:
        raise UsageError(f"cannot serve {address.host} port {address.port}: {error.strerror}") from None
