"""`/sweeps` and `/sweeps/{name}`: plans, how far they are, their runs and their report."""

from __future__ import annotations

from asyncio import to_thread
from urllib.parse import quote

from nicegui import ui

from harness.errors import RingsmithError
from runs.sweep_record import SweepRecord
from runs.wording import duration, when
from service.tally import STATES, Tally
from service.web.profile import plain_table
from service.web.runs_page import runs_page
from service.web.site import Site, Visitor, frame, heading, sentence, tried
from service.web.table import Column, Paged, Row

REFRESH_S = 5.0
COLUMNS = (
    Column("sweep", "Sweep"),
    Column("began", "Last change"),
    Column("state", "State"),
    Column("models", "Models", wide=True),
    Column("problems", "Problems", number=True),
    Column("samples", "Samples", number=True),
    Column("done", "Runs ended", number=True),
)


def page(site: Site) -> None:
    async def fetch(offset: int, limit: int) -> tuple[list[Row], int]:
        sweeps = await to_thread(site.keeper.sweeps.list)
        return await to_thread(lambda: [row_of(one) for one in sweeps[offset : offset + limit]]), len(sweeps)

    with frame(site, "Sweeps", "/sweeps"):
        heading("Sweeps", 1)
        listed = Paged("Sweeps", COLUMNS, fetch)
        ui.timer(0, listed.refresh, once=True)
        ui.timer(REFRESH_S, listed.refresh)


def row_of(sweep: SweepRecord) -> Row:
    shown: Row = {"key": sweep.name, "href": f"/sweeps/{quote(sweep.name, safe='')}", "sweep": sweep.name}
    try:
        plan, events, states = sweep.plan(), sweep.events(), sweep.states()
    except RingsmithError as error:
        return shown | {"state": f"cannot be read: {str(error)[:100]}"}
    cells = len(plan.cells())
    return shown | {
        "began": when(events[-1].at) if events else "",
        "state": "running" if sweep.is_being_run() else "not running",
        "models": ", ".join(plan.models)[:120],
        "problems": str(len(plan.cases)),
        "samples": str(plan.samples),
        "done": f"{sum(state.final for state in states.values())} of {cells}",
    }


async def one_page(site: Site, name: str) -> None:
    with frame(site, name) as visitor:
        heading(f"Sweep {name}", 1)
        record = await tried(site.keeper.sweeps.record, name)
        if record is None:
            ui.label("There is no such sweep.")
            return
        with ui.row().classes("acts"):
            for label, act in (("Resume", "resume"), ("Drain", "drain"), ("Cancel", "cancel")):
                ui.button(label, on_click=lambda act=act: _act(site, visitor, name, act)).props("outline no-caps dense")
            ui.link("Report", f"/files/sweeps/{quote(name, safe='')}/report.html")
        shown = ui.element("div").props('role="status"').classes("w-full")

        async def refresh() -> None:
            found = await tried(lambda: _tally(record))
            if found is None:
                return
            tally, running = found
            shown.clear()
            with shown:
                with ui.row().classes("facts"):
                    sentence("State", "running" if running else "not running")
                    sentence("Worked on for", duration(tally.wall_s))
                    sentence("Tokens", f"{tally.spend.tokens:,}")
                    sentence("USD", f"{'' if tally.spend.usd_known else 'at least '}{tally.spend.usd:.2f}")
                    sentence("Device hours", f"{tally.spend.device_s / 3600:.2f}")
                models = sorted({cell.model for cell in tally.cells})
                rows = [[model, *(tally.count(state, model) for state in STATES)] for model in models]
                plain_table(("model", *STATES), rows)

        await refresh()
        ui.timer(REFRESH_S, refresh)
        heading("Runs")
        runs_page(site, sweep=name)


def _tally(record: SweepRecord) -> tuple[Tally, bool]:
    running = record.is_being_run()
    tally = Tally(record.plan(), record)
    if not running:
        tally.close()
    return tally, running


async def _act(site: Site, visitor: Visitor, name: str, act: str) -> None:
    if not await visitor.may("run"):
        ui.notify("this token may only read", type="negative")
        return
    sweeps = site.keeper.sweeps
    acts = {"resume": lambda: sweeps.resume(name, by=visitor.name), "drain": lambda: sweeps.drain(name)}
    said = await tried(acts.get(act, lambda: sweeps.cancel(name)))
    if said is not None:
        ui.notify("it goes on" if act == "resume" else said)
