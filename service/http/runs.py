"""Runs: begin, list, show, follow, enter, fork."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, HTTPException, Path, Query, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import Field
from sse_starlette import EventSourceResponse

from harness.types import Frozen
from runs import control
from runs.attempts import Attempt
from runs.control import Action
from runs.events import RunConfig
from runs.record import Record
from service.asked import RunAsked
from service.http import context, views
from service.http.context import READS, KeeperNow, OnceNow, Reader, Runner
from service.http.errors import responses
from service.http.views import Begun, EventPage, Page, RunDetail, RunLine, Told
from service.jobs.index import Filter, SortKey
from service.jobs.tail import Tail

router = APIRouter(prefix="/api/v1/runs", tags=["runs"], responses=responses(401, 403, 404, 409, 422, 429, 503))

RunId = Annotated[str, Path(max_length=200, description="A run's id.")]
Text = Annotated[str, Query(max_length=200)]


class ForkAsked(Frozen):
    """A new run that goes on from an attempt of another one. What is null is as it was there."""

    attempt: int = Field(ge=1, le=1_000_000)
    lane: int | None = Field(default=None, ge=1, le=1_000_000)
    """Needed where several lanes have an attempt of that number."""
    hint: str = Field(default="", max_length=9_000)
    """What the model is told besides."""
    model: str | None = Field(default=None, min_length=1, max_length=1000)
    strategy: str | None = Field(default=None, max_length=100)
    steps: int | None = Field(default=None, ge=1)
    tokens: int | None = Field(default=None, ge=1)
    usd: float | None = Field(default=None, ge=0.0, allow_inf_nan=False)
    wall: float | None = Field(default=None, ge=1.0, allow_inf_nan=False)
    device_seconds: float | None = Field(default=None, ge=1.0, allow_inf_nan=False)
    speedup_target: float | None = Field(default=None, ge=0.0, allow_inf_nan=False)

    def change(self, config: RunConfig) -> RunConfig:
        limits = {
            "steps": self.steps,
            "tokens": self.tokens,
            "usd": self.usd,
            "wall_s": self.wall,
            "device_s": self.device_seconds,
        }
        changed: dict[str, Any] = {
            "budget": config.budget.model_copy(update={k: v for k, v in limits.items() if v is not None})
        }
        if self.speedup_target is not None:
            changed["target"] = config.target.model_copy(update={"speedup": self.speedup_target})
        changed |= {k: v for k, v in (("model", self.model), ("strategy", self.strategy)) if v is not None}
        return config.model_copy(update=changed)


@router.post("", status_code=201)
def start(asked: RunAsked, keeper: KeeperNow, who: Runner, once: OnceNow, response: Response) -> Begun:
    """Begin a run: a model writes kernels for a problem. It waits for its turn where many go on already."""
    keeper.allow(asked.model, asked.suite)
    run_id = keeper.start(asked.resolved(keeper.place), by=who.name, once=once)
    response.headers["Location"] = f"{router.prefix}/{run_id}"
    return Begun(run_id=run_id)


@router.get("", dependencies=READS, response_model=Page[RunLine])
def listed(
    keeper: KeeperNow,
    problem: Annotated[int | None, Query(ge=0, le=1_000_000)] = None,
    model: Annotated[str, Query(max_length=1000)] = "",
    state: Text = "",
    verdict: Text = "",
    sweep: Annotated[str | None, Query(max_length=200, description="Empty: runs of no sweep.")] = None,
    text: Annotated[str, Query(max_length=200, description="In the run's id, its problem or its model.")] = "",
    sort: SortKey = "started",
    ascending: bool = False,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
) -> Response:
    """Runs, newest first, a page at a time. What a run has done appears here within two seconds."""
    wanted = Filter(problem=problem, model=model, state=state, verdict=verdict, sweep=sweep, text=text)
    rows, total = keeper.index.list(wanted, limit=limit, offset=offset, sort=sort, ascending=ascending)
    page = Page[RunLine](items=tuple(views.run_line(row) for row in rows), total=total)
    return Response(page.model_dump_json(), media_type="application/json")  # once, not as FastAPI does it


@router.get("/{run_id}", dependencies=READS)
def show(run_id: RunId, keeper: KeeperNow) -> RunDetail:
    """The state of a run, as its record says now. A run that has not begun is in the list only."""
    tail = _begun(keeper, run_id)
    run = tail.run()
    assert run is not None
    active = keeper.is_active(run_id)
    status = "running" if active and run.status == "interrupted" else run.status
    waiting = tuple(asked.action or "unreadable" for asked in control.pending(tail.path))
    same = ("reason", "config", "best", "spend", "official", "target_met", "started_at", "finished_at")
    return RunDetail(
        run_id=run_id,
        status=status,
        lanes=run.lanes,
        helped=run.helped,
        prices=run.prices,
        attempts=run.evaluated,
        events=len(tail),
        active=active,
        waiting=waiting,
        **{name: getattr(run, name) for name in same},
    )


@router.get("/{run_id}/attempts", dependencies=READS)
def attempts(
    run_id: RunId,
    keeper: KeeperNow,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
) -> Page[Attempt]:
    """What the run has tried, oldest first."""
    run = _begun(keeper, run_id).run()
    assert run is not None
    return Page[Attempt](items=run.attempts[offset : offset + limit], total=len(run.attempts))


@router.get("/{run_id}/candidates/{candidate}", dependencies=READS, response_class=PlainTextResponse)
def candidate(
    run_id: RunId, candidate: Annotated[str, Path(pattern="^[0-9a-f]{16}$")], keeper: KeeperNow
) -> PlainTextResponse:
    """A candidate's text, by its hash."""
    record = Record(_begun(keeper, run_id).path)
    if not (record.path / "candidates" / f"{candidate}.py").is_file():
        raise HTTPException(404, f"run {run_id} has no candidate {candidate}")
    return PlainTextResponse(record.candidate(candidate).source)


@router.get("/{run_id}/events", dependencies=READS)
def events(
    run_id: RunId,
    keeper: KeeperNow,
    after: Annotated[int, Query(ge=0, le=1_000_000_000, description="Number of an event; 0: from the first.")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> EventPage:
    """Some events of the record, at least one if there are any and about a megabyte at most."""
    tail = _begun(keeper, run_id)
    lines = tuple(json.loads(line) for line in tail.lines(after, limit))
    return EventPage(events=lines, first=after + 1, total=len(tail))


@router.get("/{run_id}/stream", response_class=EventSourceResponse, responses={204: {"description": "It is over."}})
async def stream(
    request: Request,
    run_id: RunId,
    who: Reader,
    after: Annotated[int, Query(ge=0, le=1_000_000_000, description="As Last-Event-ID, which wins.")] = 0,
    last_event_id: Annotated[str | None, Header(max_length=20)] = None,
) -> Response:
    """The events as they are written: server-sent events with the event's number in the record as id, so that a client
    that comes back with its Last-Event-ID misses none and gets none twice. The last one is named `end`; a client that
    comes back behind it gets 204."""
    if last_event_id is not None and last_event_id.isdecimal() and last_event_id.isascii():
        after = min(int(last_event_id), 1_000_000_000)
    here = context.of(request)
    if here.follower.clients >= MAX_STREAMS:
        raise HTTPException(429, f"{MAX_STREAMS} streams are open already", {"Retry-After": "5"})
    tail = await context.in_thread(here.keeper.tail, run_id)
    await context.in_thread(tail.catch_up)
    if after >= len(tail) and len(tail) and not here.keeper.is_active(run_id) and tail.has_final_end():
        return Response(status_code=204)
    return EventSourceResponse(_sent(request, tail, after), ping=15, send_timeout=60, sep="\n")


MAX_STREAMS = 2000


async def _sent(request: Request, tail: Tail, after: int) -> AsyncIterator[bytes]:
    follower = context.of(request).follower
    async for lines in follower.events(tail, after):
        for number, line in lines:
            yield b"id: %d\ndata: %s\n\n" % (number, line)
    if not follower.closing:
        yield b"event: end\ndata: {}\n\n"


@router.post("/{run_id}/pause")
def pause(run_id: RunId, keeper: KeeperNow, who: Runner, once: OnceNow) -> Told:
    """Hold the run before its next step. It stays paused when the server is restarted."""
    return Told(run_id=run_id, taken=keeper.ask(run_id, "pause", once=once))


@router.post("/{run_id}/resume")
def resume(run_id: RunId, keeper: KeeperNow, who: Runner, once: OnceNow) -> Told:
    """Let a paused run go on, or go on with one that was interrupted or failed."""
    return Told(run_id=run_id, taken=keeper.resume(run_id, by=who.name, once=once))


@router.post("/{run_id}/cancel")
def cancel(run_id: RunId, keeper: KeeperNow, who: Runner, once: OnceNow) -> Told:
    """End the run after the tool call that is being made, with the official evaluation of its best candidate. Twice:
    without it."""
    return Told(run_id=run_id, taken=keeper.ask(run_id, "cancel", once=once))


@router.post("/{run_id}/hint")
def hint(run_id: RunId, said: views.Hint, keeper: KeeperNow, who: Runner, once: OnceNow) -> Told:
    """Say something to the model, before its next step."""
    return _ask(keeper, run_id, "hint", said.text, once)


@router.post("/{run_id}/candidate")
def replace(run_id: RunId, new: views.NewCandidate, keeper: KeeperNow, who: Runner, once: OnceNow) -> Told:
    """Replace the current candidate, before the next step. The model is told what has changed."""
    return _ask(keeper, run_id, "candidate", new.source, once)


@router.post("/{run_id}/fork", status_code=201)
def fork(run_id: RunId, asked: ForkAsked, keeper: KeeperNow, who: Runner, once: OnceNow, response: Response) -> Begun:
    """A new run that goes on from an attempt of this one. It counts as helped."""
    new = keeper.fork(
        run_id, asked.attempt, lane=asked.lane, hint=asked.hint, change=asked.change, by=who.name, once=once
    )
    response.headers["Location"] = f"{router.prefix}/{new}"
    return Begun(run_id=new)


def _ask(keeper: KeeperNow, run_id: str, action: Action, text: str, once: OnceNow) -> Told:
    return Told(run_id=run_id, taken=keeper.ask(run_id, action, text, once=once))


def _begun(keeper: KeeperNow, run_id: str) -> Tail:
    """Raises HTTPException 404 while it has no event."""
    tail = keeper.tail(run_id)
    if tail.folding() is None:
        raise HTTPException(404, f"run {run_id} has not begun: the list of runs says how it stands")
    return tail
