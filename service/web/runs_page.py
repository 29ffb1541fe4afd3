"""`/`: all runs, filtered and paged by the index."""

from __future__ import annotations

from asyncio import to_thread
from typing import Any
from urllib.parse import quote

from nicegui import ui

from harness.types import Verdict
from harness.wording import figure
from runs.wording import when
from service.jobs.index import Filter, SortKey
from service.jobs.tables import RunIndex
from service.web.site import Site, frame, heading
from service.web.starting import Starting
from service.web.table import Column, Paged, Row

REFRESH_S = 2.0
STATES = ("queued", "running", "paused", "finished", "interrupted", "unreadable")
SORTS: dict[SortKey, str] = {
    "started": "newest",
    "speedup": "speed-up",
    "usd": "cost",
    "steps": "steps",
    "model": "model",
    "problem": "problem",
}
COLUMNS = (
    Column("run", "Run", wide=True),
    Column("began", "Began"),
    Column("problem", "Problem", wide=True),
    Column("model", "Model", wide=True),
    Column("state", "State"),
    Column("verdict", "Verdict"),
    Column("speedup", "Speed-up", number=True),
    Column("steps", "Steps", number=True),
    Column("usd", "USD", number=True),
    Column("reason", "End", wide=True),
)


def runs_page(site: Site, sweep: str | None = None) -> None:
    """`sweep`: only its runs."""

    async def fetch(offset: int, limit: int) -> tuple[list[Row], int]:
        wanted = Filter(
            problem=int(problem.value) if problem.value else None,
            model=(model.value or "").strip(),
            state=state.value or "",
            verdict=verdict.value or "",
            sweep=sweep,
            text=(text.value or "").strip(),
        )
        rows, total = await to_thread(
            site.keeper.index.list,
            wanted,
            limit=limit,
            offset=offset,
            sort=sort.value,
            ascending=sort.value in ("model", "problem"),
        )
        return [row_of(row) for row in rows], total

    async def changed(_: Any = None) -> None:
        await listed.first()

    with ui.row().classes("filters"):
        text = ui.input("Filter by run, problem or model", on_change=changed)
        text.props('type="search" clearable debounce="250"').classes("grow")
        state = ui.select({"": "any state"} | {name: name for name in STATES}, value="", label="State")
        verdict = ui.select({"": "any verdict"} | {v.value: v.value for v in Verdict}, value="", label="Verdict")
        problem = ui.number("Problem", min=1, precision=0, on_change=changed).props('clearable debounce="250"')
        model = ui.input("Model", on_change=changed).props('clearable debounce="250"')
        sort = ui.select(dict(SORTS), value="started", label="Sorted by")
        for chosen in (state, verdict, sort):
            chosen.on_value_change(changed)
    listed = Paged("Runs", COLUMNS, fetch)
    ui.timer(0, listed.refresh, once=True)
    ui.timer(REFRESH_S, listed.refresh)


def page(site: Site) -> None:
    with frame(site, "Runs", "/") as visitor:
        heading("Runs", 1)
        Starting(site, visitor)
        runs_page(site)


def row_of(row: RunIndex) -> Row:
    return {
        "key": row.path,
        "href": f"/runs/{quote(row.run_id, safe='')}",
        "run": row.run_id,
        "began": when(row.started_at),
        "problem": f"{row.problem} {row.name}, {row.case}",
        "model": row.model,
        "state": row.state,
        "verdict": row.verdict,
        "speedup": f"{figure(row.speedup)}x" if row.speedup is not None else "",
        "steps": str(row.steps),
        "usd": f"{row.usd:.2f}",
        "reason": row.reason[:80],
    }
