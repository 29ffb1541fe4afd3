"""What was said and which tools were called, some entries at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from nicegui import ui

from runs.view import Call, Entry
from runs.wording import duration
from service.web.live import Live
from service.web.site import badge, heading, pre

SIZE = 20
_FOLDED = 1200
"""Characters from which on a text is folded, unless the model said it."""


class Transcript:
    """A page of entries; the last page is followed while the run goes on."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._first = -1
        """Index of the first entry that is shown."""
        self._shown: list[tuple[ui.element, int]] = []
        """Each entry's element, and how many of its calls had returned when it was filled."""
        with ui.row().classes("pager"):
            self._pages = ui.pagination(1, 1, direction_links=True, on_change=lambda: self.refresh())
            self._pages.props('max-pages="7" boundary-numbers aria-label="Pages of the transcript"')
            self._said = ui.label().classes("faint")
        self._holder = ui.element("div").classes("w-full")

    def go_to(self, step: int) -> None:
        """Show the page that a step is on."""
        view = self._live.view
        found = next((entry.index for entry in view.entries if entry.step == step), 0) if view else 0
        self._pages.value = found // SIZE + 1  # which refreshes
        self.refresh()

    def refresh(self) -> None:
        """Show what is new; what is unfolded stays so."""
        view = self._live.view
        if view is None:
            return
        pages = max(1, -(-len(view.entries) // SIZE))
        before = self._pages.max or 1
        followed = self._pages.value == before and self._first >= 0
        if pages != before:
            self._pages.max = pages
            if followed:
                self._pages.value = pages  # which refreshes
                return
        first = (int(self._pages.value or 1) - 1) * SIZE
        if first != self._first:
            self._first, self._shown = first, []
            self._holder.clear()
        entries = view.entries[first : first + SIZE]
        for place, entry in enumerate(entries):
            returned = sum(call.result is not None for call in entry.calls)
            if place == len(self._shown):
                with self._holder:
                    self._shown.append((ui.element("article").classes(f"entry {entry.role}"), -1))
            element, known = self._shown[place]
            if known != returned:
                element.clear()
                with element:
                    _fill(entry)
                self._shown[place] = (element, returned)
        self._said.text = f"entries {first + 1} to {first + len(entries)} of {len(view.entries):,}"


def _fill(entry: Entry) -> None:
    heading(f"{entry.title} · {duration(entry.at_s)}", 3)
    if entry.text and (entry.role in ("assistant", "person") or len(entry.text) < _FOLDED):
        pre(entry.text)
    elif entry.text:
        _folded(f"{len(entry.text):,} characters", partial(pre, entry.text))
    for call in entry.calls:
        _folded(_title(call), partial(_call, call))


def _folded(title: str, build: Callable[[], object]) -> None:
    """What is in it is made when it is opened first: a page of calls can hold megabytes."""
    fold = ui.expansion(title).props("dense").classes("w-full")

    def opened() -> None:
        if fold.value and not fold.default_slot.children:
            with fold:
                build()

    fold.on_value_change(opened)


def _title(call: Call) -> str:
    ended = "no result yet" if call.result is None else "refused" if not call.ok else call.verdict or "done"
    return f"{call.name}: {ended}, {call.seconds:.1f} s"


def _call(call: Call) -> None:
    if call.verdict:
        badge(call.verdict)
    for name, text in call.arguments:
        ui.label(name or "arguments").classes("faint")
        pre(text)
    if call.result is not None:
        ui.label("result").classes("faint")
        pre(call.result)
