"""What routes get from the app and the request: the keeper, who asks, and the Idempotency-Key."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Header, HTTPException, Request, Security
from fastapi.concurrency import run_in_threadpool
from fastapi.security import HTTPBearer

from service.http.access import Grant, Scope, Tokens
from service.jobs.follow import Follower
from service.jobs.keeper import Keeper
from service.jobs.store import Once

_BEARER = HTTPBearer(auto_error=False, description="Not needed at the machine itself, unless the server says so.")


@dataclass(frozen=True)
class Context:
    """Of the app."""

    keeper: Keeper
    tokens: Tokens
    follower: Follower


in_thread = run_in_threadpool


def of(request: Request) -> Context:
    return cast(Context, request.app.state.context)


# Dependencies are coroutines: FastAPI would give each that is none to a thread, and many runs' threads are at work.


async def _here(request: Request) -> Context:
    return of(request)


async def _keeper(request: Request) -> Keeper:
    return of(request).keeper


Here = Annotated[Context, Depends(_here)]


KeeperNow = Annotated[Keeper, Depends(_keeper)]


class _Needs:
    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    async def __call__(self, request: Request, _: Annotated[object, Security(_BEARER)]) -> Grant:
        grant = cast("Grant | None", request.state.grant)
        if grant is None or not grant.allows(self._scope):
            raise HTTPException(403, f"this needs a token of scope {self._scope}")
        return grant


Reader = Annotated[Grant, Depends(_Needs("read"))]
Runner = Annotated[Grant, Depends(_Needs("run"))]
Admin = Annotated[Grant, Depends(_Needs("admin"))]
READS = [Depends(_Needs("read"))]
ADMINISTERS = [Depends(_Needs("admin"))]


async def _once(
    request: Request,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=200,
            pattern="^[ -~]+$",
            description="Any word of yours: the same request with the same key is carried out once, for seven days.",
        ),
    ] = None,
) -> Once | None:
    if idempotency_key is None:
        return None
    grant: Grant | None = request.state.grant
    what = f"{request.method} {request.url.path}\n".encode() + await request.body()
    return Once(grant.name if grant else "", idempotency_key, hashlib.sha256(what).hexdigest())


OnceNow = Annotated[Once | None, Depends(_once)]
