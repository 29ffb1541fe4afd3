"""One attempt: its text or what it changes, why it failed on each rank, its profile; and a person's own version."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Callable
from functools import partial
from typing import Any

from nicegui import ui

from harness.errors import RingsmithError
from runs.diff import DiffLine, diff
from runs.record import Record
from runs.revisions import Revision
from runs.wording import speedups
from service.web.editing import Editing
from service.web.failure import show_failure
from service.web.live import Live
from service.web.profile import show_profile
from service.web.site import Site, Visitor, badge, sentence, tell, tried

_TEXT, _BEFORE, _BEST = "text", "before", "best"
_SHOWN = {_TEXT: "its text", _BEFORE: "changes from the one before", _BEST: "difference from the best"}
"""And `=KEY`: the difference from that attempt."""
_KINDS = {"+": "diff-plus", "-": "diff-minus", "@": "diff-cut"}


class AttemptPart:
    def __init__(
        self, site: Site, run_id: str, live: Live, visitor: Visitor, go_to_step: Callable[[int], None]
    ) -> None:
        self._site, self._run_id, self._live, self._visitor = site, run_id, live, visitor
        self._go_to_step = go_to_step
        self._shown: tuple[Any, ...] = ()
        self._picked = False
        with ui.row().classes("filters"):
            self._which = ui.select({}, label="Attempt", with_input=True, on_change=self._chosen).classes("grow")
            self._against = ui.select(
                _SHOWN,
                value=_TEXT,
                label="Show",
                with_input=True,
                on_change=self._chosen,
            ).classes("grow")
        self._facts = ui.element("div").classes("facts")
        self._code = ui.codemirror(language="Python").classes("code").props('aria-label="Candidate"')
        self._code.disable()
        self._editing = Editing(site, run_id, live, visitor, self._code)
        self._failure = ui.element("div").classes("w-full")
        self._profile = ui.element("div").classes("w-full")
        ui.timer(0, self._theme, once=True)

    async def pick(self, key: str) -> None:
        """Show this attempt from now on."""
        self._picked = True
        self._which.value = key
        await self._chosen()

    async def refresh(self) -> None:
        """Attempts that are new can be chosen; until one is, the best is shown, or the last."""
        view = self._live.view
        if view is None or not view.revisions:
            return
        keys = {one.key: _named(one, one is view.best) for one in view.revisions}
        if self._which.options != keys:
            self._which.set_options(keys)
            others = {f"={one.key}": f"difference from {_named(one, one is view.best)}" for one in view.revisions}
            self._against.set_options(_SHOWN | others)
        if not self._picked:
            self._which.value = (view.best or view.revisions[-1]).key
        await self._chosen()

    async def _chosen(self) -> None:
        view = self._live.view
        one = view.revision(str(self._which.value or "")) if view else None
        if view is None or one is None or self._editing.active:
            return
        other = self._other(one)
        shown = (one.key, other.key if other else self._against.value, len(one.attempts), one.profile, one.build)
        if shown == self._shown:
            return
        self._shown = shown
        try:
            source, lines = await to_thread(_texts, Record(self._live.tail.path), one, other)
        except RingsmithError as error:
            tell(error)
            return
        if self._shown != shown or self._editing.active:  # another was chosen meanwhile
            return
        self._show_facts(one)
        self._editing.source = source
        self._show_code(source, lines)
        self._failure.clear()
        with self._failure:
            if one.failed is not None:
                show_failure(one.failed)
        self._profile.clear()
        with self._profile:
            if one.profile is not None:
                show_profile(one.profile, self._live.tail.path)

    def _other(self, one: Revision) -> Revision | None:
        view = self._live.view
        assert view is not None
        against = str(self._against.value or _TEXT)
        if against == _BEFORE:
            return view.before(one)
        return view.best if against == _BEST else view.revision(against.removeprefix("="))

    def _show_code(self, source: str | None, lines: list[DiffLine] | None) -> None:
        self._code.language = "Python" if lines is None else None  # a piece of a text does not parse
        if lines is None:
            self._code.value = source if source is not None else "the record does not have this candidate"
            self._code.decorations = []
            return
        self._code.value = "\n".join(f"{line.mark} {line.text}" for line in lines)
        self._code.decorations = [
            {"kind": "line", "line": number, "class": _KINDS[line.mark]}
            for number, line in enumerate(lines, start=1)
            if line.mark in _KINDS
        ]

    def _show_facts(self, one: Revision) -> None:
        self._facts.clear()
        with self._facts:
            badge(one.verdict)
            if figures := speedups(one.measurement) if one.verdict == "passed" else "":
                sentence("Speed-up", figures)
            sentence("Step", one.step)
            sentence("Made by", one.tool)
            sentence("Candidate", one.candidate)
            if one.said:
                sentence("Said", one.said)
            for label, act in (
                ("In the transcript", partial(self._go_to_step, one.step)),
                ("New run from here", partial(self._fork, one)),
            ):
                ui.button(label, on_click=act).props("flat no-caps dense size=sm")

    async def _fork(self, one: Revision) -> None:
        if not await self._visitor.may("run"):
            ui.notify("this token may only read", type="negative")
            return
        fork = self._site.keeper.fork
        begun = await tried(fork, self._run_id, one.number, lane=one.lane, by=self._visitor.name)
        if begun is not None:
            ui.navigate.to(f"/runs/{begun}")

    async def _theme(self) -> None:
        dark = await ui.run_javascript('matchMedia("(prefers-color-scheme: dark)").matches', timeout=5.0)
        self._code.theme = "vscodeDark" if dark else "vscodeLight"


def _texts(record: Record, one: Revision, other: Revision | None) -> tuple[str | None, list[DiffLine] | None]:
    """The candidate, and how it differs from another; None where there is no such text. Raises UsageError for texts
    too long to compare."""
    source = _source(record, one.candidate)
    old = _source(record, other.candidate) if other is not None and other.candidate != one.candidate else None
    return source, diff(old, source) if source is not None and old is not None else None


def _named(one: Revision, best: bool) -> str:
    return f"{one.key}: {one.verdict or 'not evaluated'}{' (best)' if best else ''}"


def _source(record: Record, of: str) -> str | None:
    try:
        return record.candidate(of).source
    except (RingsmithError, UnicodeDecodeError):
        return None
