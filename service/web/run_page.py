"""`/runs/{id}`: one run, live."""

from __future__ import annotations

from asyncio import to_thread
from urllib.parse import quote

from nicegui import ui

from harness.errors import RingsmithError
from harness.wording import ratio_text
from runs.events import RunConfig
from runs.revisions import Revision
from runs.view import Used, View
from runs.wording import duration, speedups, when
from service.web.acts import Acts
from service.web.attempt import AttemptPart
from service.web.chart import over_steps
from service.web.live import Live
from service.web.site import Site, Visitor, badge, frame, heading, sentence, tell
from service.web.table import Column, Paged, Row
from service.web.transcript import Transcript

REFRESH_S = 1.0
COLUMNS = (
    Column("attempt", "Attempt"),
    Column("step", "Step", number=True),
    Column("by", "Made by"),
    Column("verdict", "Verdict"),
    Column("eager", "Eager"),
    Column("device", "Device"),
    Column("moved", "Moved by"),
    Column("result", "Result", wide=True),
)


class RunPage:
    """Built once the record has been read."""

    def __init__(self, site: Site, run_id: str, live: Live, visitor: Visitor) -> None:
        assert live.view is not None
        self.site, self.run_id, self.live, self.view = site, run_id, live, live.view
        self._events = -1
        self._status = ""
        config = self.view.state.config
        heading(f"{config.problem} {name_of(self.view)}, case {config.case}", 1)
        ui.label(line_of(run_id, config, self.view)).classes("faint")
        self._head = ui.element("div").props('role="status"')
        self.acts = Acts(site, run_id, live, visitor)
        self._links()
        self._meters = ui.element("div").classes("meters")
        self._chart = ui.echart(over_steps(self.view), on_point_click=lambda event: self.pick(event.data["key"]))
        self._chart.classes("chart").props(
            'role="img" aria-label="Speed-up over steps; the attempts list has the same"'
        )
        with ui.tabs().props("align=left inline-label no-caps") as self._tabs:
            attempts, self._one, self._said, settings = (
                ui.tab(name) for name in ("Attempts", "Candidate", "Transcript", "Settings")
            )
        with ui.tab_panels(self._tabs, value=attempts, animated=False, keep_alive=True).classes("w-full"):
            with ui.tab_panel(attempts):
                self._list = Paged("Attempts", COLUMNS, self._rows, on_pick=self.pick)
            with ui.tab_panel(self._one):
                self.attempt = AttemptPart(site, run_id, live, visitor, self._go_to_step)
            with ui.tab_panel(self._said):
                self._transcript = Transcript(live)
            with ui.tab_panel(settings):
                self._settings(config)

    async def refresh(self) -> None:
        """Take in what the record has now."""
        try:
            events = await to_thread(self.live.catch_up)
        except (RingsmithError, OSError) as error:
            tell(error)
            return
        status = await to_thread(lambda: self.live.status)
        if (events, status) == (self._events, self._status):
            return
        self._events, self._status = events, status
        assert self.live.view is not None
        self.view = self.live.view
        self._show_head(status)
        self._show_meters()
        self._chart.options.clear()
        self._chart.options.update(over_steps(self.view))
        self.acts.show(status)
        await self._list.refresh()
        await self.attempt.refresh()
        self._transcript.refresh()

    async def pick(self, key: str) -> None:
        """Show an attempt."""
        if self.view.revision(key) is not None:
            self._tabs.value = self._one
            await self.attempt.pick(key)

    def _go_to_step(self, step: int) -> None:
        self._tabs.value = self._said
        self._transcript.go_to(step)

    async def _rows(self, offset: int, limit: int) -> tuple[list[Row], int]:
        """Newest first."""
        revisions = self.view.revisions
        newest = revisions[::-1][offset : offset + limit]
        best = self.view.best
        return [row_of(one, one is best) for one in newest], len(revisions)

    def _show_head(self, status: str) -> None:
        view = self.view
        self._head.clear()
        with self._head, ui.row().classes("facts"):
            sentence("State", status + (f": {view.finished.reason[:200]}" if view.finished else ""))
            if view.official is not None:
                with ui.element("div").classes("fact"):
                    ui.label("Official").classes("faint")
                    badge(view.official.verdict)
                    ui.label(speedups(view.official.measurement))
            if (best := view.best) is not None:
                figure = ratio_text(best.speedup) if best.speedup else "correct, not timed"
                sentence("Best", f"attempt {best.key}, step {best.step}: {figure}")
            else:
                sentence("Best", "none yet")
            if view.finished:
                sentence("Target", "met" if view.finished.target_met else "not met")
            if view.state.helped:
                sentence("Helped", "a person gave a hint or a candidate")

    def _show_meters(self) -> None:
        self._meters.clear()
        with self._meters:
            for one in self.view.used():
                ui.label(one.name).classes("faint")
                ui.label(said(one))
                if one.limit:
                    bar = ui.linear_progress(min(1.0, one.used / one.limit), show_value=False, size="8px")
                    bar.props(f'aria-label="{one.name}"')
                else:
                    ui.label("no limit").classes("faint")

    def _links(self) -> None:
        base = f"/files/runs/{quote(self.run_id, safe='')}"
        with ui.row().classes("acts"):
            ui.link("As one HTML file", f"{base}/page.html")
            ui.link("Events (JSON lines)", f"{base}/events.jsonl")

    def _settings(self, config: RunConfig) -> None:
        with ui.element("div").classes("facts"):
            for name, value in config.model_dump(mode="json").items():
                shown = (
                    ", ".join(f"{k} {v}" for k, v in value.items() if v is not None)
                    if isinstance(value, dict)
                    else value
                )
                sentence(name.replace("_", " "), shown if shown != "" else "none")
            sentence("prompts", self.view.prompts_hash)


async def page(site: Site, run_id: str) -> None:
    with frame(site, run_id) as visitor:
        waiting = ui.label("Reading the record ...").props('role="status"')
        holder = ui.element("div").classes("w-full")

    async def build() -> None:
        """The first look at a large record takes seconds, which the page does not wait for."""
        try:
            live = site.lives.of(await to_thread(site.keeper.tail, run_id))
            await to_thread(live.catch_up)
        except (RingsmithError, OSError) as error:
            waiting.text = str(error)
            return
        if live.view is None:
            waiting.text = f"{run_id} waits for its turn, or has no events yet; this page looks again."
            return
        waiting.delete()
        looking.cancel()
        with holder:
            shown = RunPage(site, run_id, live, visitor)
            await shown.refresh()
            ui.timer(REFRESH_S, shown.refresh)

    with holder:
        looking = ui.timer(REFRESH_S, build, immediate=True)


def name_of(view: View) -> str:
    from runs.loading import UNKNOWN, described

    name, _ = described(view.state.config.suite, view.state.config.problem)
    if name == UNKNOWN and (evaluation := next((e for one in view.revisions for e in one.evaluations), None)):
        return evaluation.name
    return name


def line_of(run_id: str, config: RunConfig, view: View) -> str:
    where = f"{config.world_size} ranks on {config.platform}, {config.dtype}, {config.backend}"
    return f"{run_id}: {config.model}, {where}, led by {config.strategy}, began {when(view.started_at)}"


def row_of(one: Revision, best: bool) -> Row:
    measured = one.measurement if one.verdict == "passed" else None
    return {
        "key": one.key,
        "attempt": f"{one.key} (best)" if best else one.key,
        "step": str(one.step),
        "by": one.tool,
        "verdict": one.verdict.value if one.verdict else "",
        "eager": ratio_text(measured.eager.speedup) if measured else "",
        "device": ratio_text(measured.device.speedup) if measured and measured.device else "",
        "moved": ", ".join(one.attempts[-1].mechanisms),
        "result": (one.summary or one.said)[:160],
    }


def said(one: Used) -> str:
    if one.unit == "USD":
        used, limit = f"{one.used:.2f} USD", f"{one.limit:.2f} USD" if one.limit is not None else ""
    elif one.unit == "s":
        used, limit = duration(one.used), duration(one.limit) if one.limit is not None else ""
    else:
        used, limit = f"{one.used:,.0f} {one.unit}", f"{one.limit:,.0f}" if one.limit is not None else ""
    return f"{'' if one.exact else 'at least '}{used.strip()}{f' of {limit}' if limit else ''}"
