"""A person's own version of a candidate: evaluated by itself, or put into the run."""

from __future__ import annotations

from nicegui import ui

from harness.types import Candidate, Evaluation
from runs.wording import speedups
from service.jobs.tables import JobRow
from service.web.failure import show_failure
from service.web.live import Live
from service.web.site import Site, Visitor, badge, tried

LOOK_S = 0.5


class Editing:
    """Buttons below an editor. While it is `active` the editor is the person's."""

    def __init__(self, site: Site, run_id: str, live: Live, visitor: Visitor, code: ui.codemirror) -> None:
        self._site, self._run_id, self._live, self._visitor, self._code = site, run_id, live, visitor, code
        self.active = False
        self.source: str | None = None
        """Of the attempt that is shown."""
        with ui.row().classes("acts"):
            self._begin = ui.button("Edit and evaluate", on_click=self._start)
            self._evaluate = ui.button("Evaluate", on_click=self._judge)
            self._send = ui.button("Put into the run", on_click=self._put)
            self._stop = ui.button("Stop editing", on_click=self._end)
            for button in (self._begin, self._evaluate, self._send, self._stop):
                button.props("outline no-caps dense").classes("act")
        self._result = ui.element("div").classes("w-full").props('role="status"')
        self._show()

    def _show(self) -> None:
        self._begin.set_visibility(not self.active)
        for button in (self._evaluate, self._stop):
            button.set_visibility(self.active)
        self._send.set_visibility(self.active and not self._live.tail.has_final_end())
        self._code.set_enabled(self.active)

    def _start(self) -> None:
        if self.source is None:
            ui.notify("there is no text to begin with", type="negative")
            return
        self.active = True
        self._code.decorations = []
        self._code.language = "Python"
        self._code.value = self.source
        self._show()

    def _end(self) -> None:
        self.active = False
        self._code.value = self.source or ""
        self._show()

    async def _put(self) -> None:
        if await self._may() and await tried(self._site.keeper.ask, self._run_id, "candidate", self._code.value):
            ui.notify("the run takes it before its next step")

    async def _judge(self) -> None:
        view = self._live.view
        if view is None or not await self._may():
            return
        config = view.state.config
        request = config.request(Candidate(source=self._code.value, backend=config.backend))
        job_id = await tried(self._site.keeper.evaluate, request, config.isolation, by=self._visitor.name)
        if job_id is None:
            return
        self._result.clear()
        with self._result:
            ui.label("Evaluating ...")
            looking = ui.timer(LOOK_S, lambda: look())

        async def look() -> None:
            job: JobRow | None = await tried(self._site.keeper.evaluation, job_id)
            if job is not None and job.state in ("ended", "failed"):
                looking.cancel()
                self._result.clear()
                with self._result:
                    _show_job(job)

    async def _may(self) -> bool:
        if await self._visitor.may("run"):
            return True
        ui.notify("this token may only read", type="negative")
        return False


def _show_job(job: JobRow) -> None:
    if job.state == "failed" or job.answer is None:
        ui.label(f"Could not be evaluated: {job.error}")
        return
    evaluation = Evaluation.model_validate_json(job.answer)
    with ui.row().classes("facts"):
        badge(evaluation.verdict)
        ui.label(speedups(evaluation.measurement) or ("correct, not timed" if evaluation.passed else ""))
    if not evaluation.passed:
        show_failure(evaluation)
