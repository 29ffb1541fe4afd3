"""Sweeps and their reports."""

from __future__ import annotations

import threading
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Path, Query, Response

from harness.errors import UsageError
from harness.types import Frozen
from runs.sweep_record import SweepRecord
from service import presets
from service.http.context import READS, KeeperNow, OnceNow, Runner
from service.http.errors import responses
from service.http.views import Page, SweepDetail, SweepLine
from service.plan import Wanted, wanted
from service.tally import STATES, Tally

router = APIRouter(prefix="/api/v1/sweeps", tags=["sweeps"], responses=responses(401, 403, 404, 409, 422, 429, 503))

Name = Annotated[str, Path(max_length=100, pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$")]
_TYPES = {
    "html": "text/html; charset=utf-8",
    "json": "application/json",
    "md": "text/markdown; charset=utf-8",
    "latex": "text/plain; charset=utf-8",
}
_reporting = threading.Lock()
"""One report at a time: each reads all records of its sweep."""


class Said(Frozen):
    """A request that was taken."""

    name: str
    taken: str = ""


@router.put("/{name}", status_code=202)
def start(name: Name, asked: Wanted, keeper: KeeperNow, who: Runner, once: OnceNow) -> Said:
    """Begin a sweep of problems x models x samples; one that exists is gone on with, and may be widened but never
    changed. The fields are those of a plan file."""
    if asked.name not in (None, name):
        raise UsageError(f"the address says {name}, the plan {asked.name}")
    asked = wanted(None, asked.model_dump(exclude_unset=True))  # with its preset
    if asked.preset is not None:
        presets.check(asked.preset, asked.setup(keeper.place).platform, asked_for=asked.platform is not None)
    keeper.allow_all(asked)
    return Said(name=keeper.sweeps.start(asked, name, by=who.name, once=once))


@router.get("", dependencies=READS)
def listed(
    keeper: KeeperNow,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
) -> Page[SweepLine]:
    """The sweeps, by name."""
    found = keeper.sweeps.list()
    lines = tuple(SweepLine(**_line(keeper, record)) for record in found[offset : offset + limit])
    return Page[SweepLine](items=lines, total=len(found))


@router.get("/{name}", dependencies=READS)
def show(name: Name, keeper: KeeperNow) -> SweepDetail:
    """How far a sweep is. Its runs: the list of runs with `sweep=NAME`."""
    record = keeper.sweeps.record(name)
    plan = record.plan()
    tally = Tally(plan, record)
    return SweepDetail(
        **_line(keeper, record),
        plan=plan.model_dump(mode="json"),
        cells={state: tally.count(state) for state in STATES},
        spend=tally.spend,
        wall_s=tally.wall_s,
    )


@router.post("/{name}/resume", status_code=202)
def resume(name: Name, keeper: KeeperNow, who: Runner, once: OnceNow) -> Said:
    """Go on with a sweep that has ended early, as it was asked for last."""
    return Said(name=keeper.sweeps.resume(name, by=who.name, once=once))


@router.post("/{name}/drain")
def drain(name: Name, keeper: KeeperNow, who: Runner, once: OnceNow) -> Said:
    """Begin no more runs; those under way come to their end."""
    return Said(name=name, taken=keeper.sweeps.drain(name, once=once))


@router.post("/{name}/cancel")
def cancel(name: Name, keeper: KeeperNow, who: Runner, once: OnceNow) -> Said:
    """End its runs as interrupted. The sweep can be gone on with."""
    return Said(name=name, taken=keeper.sweeps.cancel(name, once=once))


@router.get("/{name}/report", dependencies=READS, response_class=Response)
def report(
    name: Name, keeper: KeeperNow, form: Annotated[Literal["html", "json", "md", "latex"], Query()] = "html"
) -> Response:
    """Tables and plots of all runs of the sweep, as `ringsmith report` writes them."""
    from runs.report import formats
    from runs.report.study import study as read_study
    from runs.report.tables import tables

    if not _reporting.acquire(blocking=False):
        raise HTTPException(429, "another report is being made", {"Retry-After": "5"})
    try:
        study = read_study([keeper.sweeps.record(name).path])
        made = tables(study)
        if form == "html":
            from runs.report.html import as_html

            text = as_html(study, made)
        elif form == "json":
            text = formats.as_json(study, made)
        else:
            text = formats.as_markdown(made) if form == "md" else formats.as_latex(made)
    finally:
        _reporting.release()
    return Response(text, media_type=_TYPES[form])


def _line(keeper: KeeperNow, record: SweepRecord) -> dict[str, Any]:
    plan, job = record.plan(), keeper.store.job("sweep", record.name)
    return {
        "name": record.name,
        "state": job.state if job else "idle",
        "reason": job.error if job else "",
        "problems": len(plan.cases),
        "models": plan.models,
        "samples": plan.samples,
    }
