"""What a person can do with a run: hint, pause, resume, cancel. All of it goes through the keeper."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from runs import control
from service.web.live import Live
from service.web.site import Site, Visitor, tried


class Acts:
    def __init__(self, site: Site, run_id: str, live: Live, visitor: Visitor) -> None:
        self._site, self._run_id, self._live, self._visitor = site, run_id, live, visitor
        with ui.row().classes("acts"):
            self._hint = ui.input("Hint to the model").props(f"maxlength={control.MAX_HINT} dense").classes("grow")
            self._hint.on("keydown.enter", self._give_hint)
            self._send = ui.button("Send hint", on_click=self._give_hint)
            self._pause = ui.button("Pause", on_click=lambda: self._ask("pause"))
            self._resume = ui.button("Resume", on_click=self._go_on)
            self._cancel = ui.button("Cancel", on_click=self._confirm, color="negative")
            for button in (self._send, self._pause, self._resume, self._cancel):
                button.props("outline no-caps dense").classes("act")
        self._waiting = ui.label().classes("faint").props('role="status"')
        with ui.dialog() as self._sure, ui.card():
            ui.label("Cancel the run? Its best candidate still gets its official evaluation.")
            with ui.row():
                ui.button("Cancel the run", on_click=self._give_up, color="negative").props("no-caps")
                ui.button("Go on", on_click=self._sure.close).props("outline no-caps")

    def show(self, status: str) -> None:
        """Offer what the run's status allows."""
        ended = self._live.tail.has_final_end()
        led = status in ("running", "paused", "queued")
        for control_, allowed in (
            (self._hint, not ended),
            (self._send, not ended),
            (self._pause, status == "running"),
            (self._resume, status == "paused" or (not led and not ended)),
            (self._cancel, led),
        ):
            control_.set_visibility(allowed)
        waiting = [
            request.action or "a request that cannot be read" for request in control.pending(self._live.tail.path)
        ]
        self._waiting.text = f"Not taken yet: {', '.join(waiting)}" if waiting else ""

    async def _give_hint(self) -> None:
        text = (self._hint.value or "").strip()
        if text and await self._ask("hint", text):
            self._hint.value = ""

    async def _go_on(self) -> None:
        await self._do(self._site.keeper.resume, self._run_id, by=self._visitor.name)

    def _confirm(self) -> None:
        self._sure.open()

    async def _give_up(self) -> None:
        self._sure.close()
        await self._ask("cancel")

    async def _ask(self, action: control.Action, text: str = "") -> bool:
        return await self._do(self._site.keeper.ask, self._run_id, action, text)

    async def _do(self, act: Any, *arguments: Any, **named: Any) -> bool:
        """Whether it was taken."""
        if not await self._visitor.may("run"):
            ui.notify("this token may only read", type="negative")
            return False
        said = await tried(act, *arguments, **named)
        if said is None:
            return False
        ui.notify(f"Taken {said}" if not said.startswith("it ") else said)
        self.show(self._live.status)
        return True
