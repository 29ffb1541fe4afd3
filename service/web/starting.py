"""A new run, from a form: what `ringsmith run` and `POST /runs` take, the fields that are asked for most."""

from __future__ import annotations

from typing import Any, get_args
from urllib.parse import quote

from nicegui import ui
from pydantic import ValidationError

from agent.strategies import STRATEGIES
from harness.errors import UsageError
from harness.types import PlatformName
from problems.catalogue import entries
from service.asked import RunAsked
from service.web.site import Site, Visitor, tried


class Starting:
    """A button that opens the form."""

    def __init__(self, site: Site, visitor: Visitor) -> None:
        self._site, self._visitor = site, visitor
        ui.button("New run", on_click=self._open).props("outline no-caps dense").classes("act")
        with ui.dialog() as self._dialog, ui.card().classes("form"):
            ui.label("New run").props('role="heading" aria-level="2"')
            listed = {entry.number: f"{entry.number} {entry.name}: {entry.title}" for entry in entries("")}
            self._fields: dict[str, Any] = {
                "problem": ui.select(listed, label="Problem of the run", with_input=True),
                "model": ui.input("Model: PROVIDER/MODEL"),
                "steps": ui.number("Steps", value=20, min=1, precision=0),
                "usd": ui.number("USD at most", min=0),
                "speedup_target": ui.number("Speed-up that ends it", min=0),
                "case": ui.input("Case, if not the usual one"),
                "platform": ui.select(
                    {"": "what this machine has"} | {name: name for name in get_args(PlatformName)},
                    value="",
                    label="Platform",
                ),
                "world_size": ui.number("Ranks, if not all GPUs", min=1, max=64, precision=0),
                "strategy": ui.select(
                    list(STRATEGIES), value=RunAsked.model_fields["strategy"].default, label="Strategy"
                ),
            }
            for field in self._fields.values():
                field.classes("w-full").props("dense")
            with ui.row():
                ui.button("Begin", on_click=self._begin).props("no-caps")
                ui.button("Leave it", on_click=self._dialog.close).props("outline no-caps")

    async def _open(self) -> None:
        if not await self._visitor.may("run"):
            ui.notify("this token may only read", type="negative")
            return
        self._dialog.open()

    async def _begin(self) -> None:
        if not await self._visitor.may("run"):
            return
        given = {name: field.value for name, field in self._fields.items()}
        run_id = await tried(self._start, {name: value for name, value in given.items() if value not in ("", None)})
        if run_id is not None:
            ui.navigate.to(f"/runs/{quote(run_id, safe='')}")

    def _start(self, given: dict[str, Any]) -> str:
        """Raises UsageError or ProblemError for what cannot be."""
        keeper = self._site.keeper
        try:
            asked = RunAsked.model_validate(given)
        except ValidationError as error:
            first = error.errors()[0]
            missing = first["type"] == "missing"
            raise UsageError(f"{first['loc'][0]}: {'say which' if missing else first['msg']}") from None
        keeper.allow(asked.model, asked.suite)
        return keeper.start(asked.resolved(keeper.place), by=self._visitor.name)
