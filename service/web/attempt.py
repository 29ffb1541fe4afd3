"""One attempt: its text or what it changes, why it failed on each rank, its profile; and a person's own version."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from harness.errors import RingsmithError
from runs.diff import diff
from runs.record import Record
from runs.revisions import Revision
from runs.wording import speedups
from service.web.editing import Editing
from service.web.failure import show_failure
from service.web.live import Live
from service.web.profile import show_profile
from service.web.site import Site, Visitor, badge, sentence, tell

_TEXT, _BEFORE, _BEST = "text", "before", "best"
_SHOWN = {_TEXT: "its text", _BEFORE: "changes from the one before", _BEST: "difference from the best"}
"""And `=KEY`: the difference from that attempt."""
_KINDS = {"+": "diff-plus", "-": "diff-minus", "@": "diff-cut"}


class AttemptPart:
    def __init__(self, site: Site, run_id: str, live: Live, visitor: Visitor) -> None:
        self._site, self._live = site, live
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

    def pick(self, key: str) -> None:
        """Show this attempt from now on."""
        self._picked = True
        self._which.value = key
        self._chosen()

    def refresh(self) -> None:
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
        self._chosen()

    def _chosen(self) -> None:
        view = self._live.view
        one = view.revision(str(self._which.value or "")) if view else None
        if view is None or one is None or self._editing.active:
            return
        other = self._other(one)
        shown = (one.key, other.key if other else self._against.value, len(one.attempts), one.profile, one.build)
        if shown == self._shown:
            return
        self._shown = shown
        record = Record(self._live.tail.path)
        self._show_facts(one)
        self._editing.source = _source(record, one.candidate)
        self._show_code(record, one, other)
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

    def _show_code(self, record: Record, one: Revision, other: Revision | None) -> None:
        source = _source(record, one.candidate)
        if source is None or other is None or other.candidate == one.candidate:
            self._code.value = source if source is not None else "the record does not have this candidate"
            self._code.decorations = []
            return
        old = _source(record, other.candidate)
        try:
            lines = diff(old or "", source)
        except RingsmithError as error:
            tell(error)
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

    async def _theme(self) -> None:
        dark = await ui.run_javascript('matchMedia("(prefers-color-scheme: dark)").matches', timeout=5.0)
        self._code.theme = "vscodeDark" if dark else "vscodeLight"


def _named(one: Revision, best: bool) -> str:
    return f"{one.key}: {one.verdict or 'not evaluated'}{' (best)' if best else ''}"


def _source(record: Record, of: str) -> str | None:
    try:
        return record.candidate(of).source
    except (RingsmithError, UnicodeDecodeError):
        return None
