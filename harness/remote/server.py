"""The node's HTTP server: sessions and jobs under versioned paths. Imports FastAPI, no torch.

GET    /v1/node                                  what this node is
PUT    /v1/suites/DIGEST                         problem files that it does not have
PUT    /v1/sessions/ID, DELETE                   begin, end
PUT    /v1/sessions/ID/jobs/ID                   begin a job; again with the same id: nothing new happens
GET    /v1/sessions/ID/jobs/ID?wait=S&seen=N     its state, at the latest after S seconds, as soon as it is done or
                                                 has entered more than N stages
GET    /v1/sessions/ID/jobs/ID/trace             of a profile
DELETE /v1/sessions/ID/jobs/ID?wait=S            end it, or forget its result; its last state, after S seconds at most
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse
from starlette.exceptions import HTTPException

from harness import machine
from harness.errors import HarnessError, UsageError
from harness.remote.gate import Known, Smaller, refusal
from harness.remote.messages import Id, JobState, NodeFacts, Order, SessionSettings, Suite, identity
from harness.remote.node import Node
from harness.remote.sessions import FullError, NotKnownError
from harness.types import IsolationLevel

MOST_WAIT_S = 20.0
_PREFIX = "ringsmith-node-"
_LOOK_S = 0.05
_TIDY_S = 1.0
_STRICTNESS: dict[IsolationLevel, int] = {"none": 0, "auto": 1, "strict": 2}


@dataclass(frozen=True)
class Settings:
    """How a node serves."""

    token_hash: bytes | None = None
    """SHA-256 of the token that clients must show; None: they need none."""
    isolation: IsolationLevel = "auto"
    accepts_suites: bool = False
    most_sessions: int = 8
    idle_s: float = 600.0
    most_request_bytes: int = 8 << 20
    tls_cert: Path | None = None
    tls_key: Path | None = None


def serve(host: str, port: int, settings: Settings, on_ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; then all sessions' processes have ended. `on_ready` gets the URL. Raises
    UsageError if the address cannot be bound or the TLS files cannot be used."""
    _sweep()
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-") as folder, _bound(host, port) as bound:
        node = Node(Path(folder), settings.most_sessions, settings.idle_s)
        ending = threading.Event()
        config = uvicorn.Config(
            app(node, settings, ending), log_level="warning", access_log=False, server_header=False,
            ssl_certfile=settings.tls_cert, ssl_keyfile=settings.tls_key, timeout_graceful_shutdown=5,
        )  # fmt: skip
        server = _Server(config, ending)
        try:
            server.config.load()
        except OSError as error:  # ssl.SSLError is one
            raise UsageError(f"the TLS files cannot be used: {error}") from None
        scheme = "https" if settings.tls_cert else "http"
        shown = f"[{host}]" if ":" in host else host
        on_ready(f"{scheme}://{shown}:{bound.getsockname()[1]}")
        try:
            server.run(sockets=[bound])
        except KeyboardInterrupt:  # uvicorn gives the signal on that has ended it
            pass
        finally:
            node.close()


def app(node: Node, settings: Settings, ending: threading.Event) -> FastAPI:
    """The application; its sessions are the node's. Once it is `ending`, nobody is kept waiting."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        tidying = asyncio.create_task(_tidy(node))
        yield
        tidying.cancel()

    api = FastAPI(title="Ringsmith node", version="1", docs_url=None, redoc_url=None, lifespan=lifespan)

    async def state_of(now: Callable[[], JobState], wait_s: float, seen: float = math.inf) -> JobState:
        deadline = time.monotonic() + min(wait_s, settings.idle_s / 4)
        while True:
            state = now()
            if state.done or len(state.stages) > seen or time.monotonic() >= deadline or ending.is_set():
                return state
            await asyncio.sleep(_LOOK_S)

    @api.get("/v1/node")
    def facts() -> NodeFacts:
        return NodeFacts(
            identity=identity(),
            platform=machine.default_platform(),
            gpus=tuple(gpu.name for gpu in machine.gpus()),
            isolation=settings.isolation,
            accepts_suites=settings.accepts_suites,
            most_request_bytes=settings.most_request_bytes,
            sessions=node.with_processes(),
            most_sessions=settings.most_sessions,
            jobs_begun=node.jobs_begun,
        )

    @api.put("/v1/suites/{digest}", status_code=204)
    def put_suite(digest: Id, suite: Suite) -> None:
        if not settings.accepts_suites:
            raise UsageError("this node runs its own problems only (`sandbox serve --accept-suites`)")
        if suite.digest != digest:
            raise UsageError("the suite's files do not have that digest")
        node.keep_suite(suite)

    @api.put("/v1/sessions/{session_id}", status_code=204)
    def begin(session_id: Id, asked: SessionSettings) -> None:
        if asked.identity != identity():
            raise UsageError(f"the node runs {identity()}, you {asked.identity}: results would not be comparable")
        if _STRICTNESS[asked.isolation] < _STRICTNESS[settings.isolation]:
            raise UsageError(f"this node jails candidates with isolation {settings.isolation}, not {asked.isolation}")
        node.begin(session_id, asked)

    @api.delete("/v1/sessions/{session_id}", status_code=204)
    def end(session_id: Id) -> None:
        node.end(session_id)

    @api.put("/v1/sessions/{session_id}/jobs/{job_id}")
    def put_job(session_id: Id, job_id: Id, order: Order) -> JobState:
        try:
            order.model_dump_json()
        except ValueError:
            raise UsageError("half a surrogate pair is no text") from None
        return node.session(session_id).put(job_id, order)

    @api.get("/v1/sessions/{session_id}/jobs/{job_id}")
    async def job(
        session_id: Id, job_id: Id, wait: float = Query(0, ge=0, le=MOST_WAIT_S), seen: int = Query(0, ge=0)
    ) -> JobState:
        session = node.session(session_id)
        return await state_of(lambda: session.state(job_id), wait, seen)

    @api.get("/v1/sessions/{session_id}/jobs/{job_id}/trace")
    def trace(session_id: Id, job_id: Id) -> FileResponse:
        return FileResponse(node.session(session_id).trace(job_id), media_type="application/json")

    @api.delete("/v1/sessions/{session_id}/jobs/{job_id}")
    async def forget(session_id: Id, job_id: Id, wait: float = Query(0, ge=0, le=MOST_WAIT_S)) -> JobState:
        kept = await run_in_threadpool(node.session(session_id).forget, job_id)
        return JobState(done=True) if kept is None else await state_of(kept.state, wait)

    async def refuse(_: Request, error: Exception) -> Response:
        status, kind = next((status, kind) for named, status, kind in _REFUSED if isinstance(error, named))
        said = str(error) or type(error).__name__
        if isinstance(error, HTTPException):
            status, said = error.status_code, error.detail
        elif isinstance(error, RequestValidationError):
            said = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:5])
        return refusal(status, kind, said)

    for error_type, _status, _kind in _REFUSED:
        api.add_exception_handler(error_type, refuse)
    api.add_middleware(Smaller, most_bytes=settings.most_request_bytes)
    api.add_middleware(Known, token_hash=settings.token_hash)
    return api


_REFUSED: tuple[tuple[type[Exception], int, str], ...] = (
    (NotKnownError, 404, "lost"),
    (FullError, 429, "harness"),
    (UsageError, 409, "usage"),
    (HarnessError, 500, "harness"),
    (RequestValidationError, 422, "usage"),
    (HTTPException, 400, "usage"),
    (Exception, 500, "harness"),
)
"""Exception -> HTTP status and kind of `Refusal`; the first that fits."""


class _Server(uvicorn.Server):
    """Sets `ending` before it waits for open connections: they may be waiting for a job."""

    def __init__(self, config: uvicorn.Config, ending: threading.Event) -> None:
        super().__init__(config)
        self._ending = ending

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._ending.set()
        super().handle_exit(sig, frame)


async def _tidy(node: Node) -> None:
    while True:
        await asyncio.sleep(_TIDY_S)
        await run_in_threadpool(node.tidy)


def _sweep() -> None:
    """Folders of servers of this user's that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
        with contextlib.suppress(OSError):
            if pid.isdigit() and folder.stat().st_uid == os.geteuid() and not Path("/proc", pid).exists():
                shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        bound = socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    with bound:
        yield bound
