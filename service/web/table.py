"""Lists of any length, a page of rows at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nicegui import ui

SIZE = 50

Row = dict[str, Any]
"""Texts by column; `key` names the row, `href` says where its first cell leads."""

_LINK = """
<q-td :props="props">
  <a v-if="props.row.href" class="row-link" :href="props.row.href">{{ props.value }}</a>
  <button v-else class="row-link" type="button" @click="() => $parent.$emit('pick', props.row.key)">
    {{ props.value }}
  </button>
</q-td>
"""
_VERDICT = """
<q-td :props="props">
  <span v-if="props.value" :class="['verdict', props.value === 'passed' ? 'right' : 'wrong']">{{ props.value }}</span>
</q-td>
"""


@dataclass(frozen=True)
class Column:
    name: str
    label: str
    number: bool = False
    wide: bool = False
    """Long texts, which are wrapped."""


Fetch = Callable[[int, int], Awaitable[tuple[Sequence[Row], int]]]
"""offset, limit -> rows, number of all."""


class Paged:
    """Call `refresh` once it is made, and whenever rows may have changed."""

    def __init__(
        self,
        name: str,
        columns: Sequence[Column],
        fetch: Fetch,
        on_pick: Callable[[str], Any] | None = None,
        size: int = SIZE,
    ) -> None:
        """The first column holds the row's link; one named `verdict` is coloured. `on_pick` gets the key of a row
        without `href`."""
        self._fetch, self._size, self.total = fetch, size, 0
        shown = [
            {"name": c.name, "label": c.label, "field": c.name, "align": "right" if c.number else "left"}
            | {"classes": "wide" if c.wide else ""}
            for c in columns
        ]
        self.table = ui.table(rows=[], columns=shown, row_key="key").classes("list")
        self.table.props(f'dense flat aria-label="{name}"')
        self.table.add_slot(f"body-cell-{columns[0].name}", _LINK)
        self.table.add_slot("body-cell-verdict", _VERDICT)
        if on_pick is not None:
            self.table.on("pick", lambda event: on_pick(str(event.args)))
        with ui.row().classes("pager"):
            self._pages = ui.pagination(1, 1, direction_links=True, on_change=self.refresh)
            self._pages.props('max-pages="7" boundary-numbers aria-label="Pages of the list"')
            self._said = ui.label().classes("faint").props('role="status"')

    async def refresh(self) -> None:
        """Fetch the page that is shown again."""
        offset = (int(self._pages.value or 1) - 1) * self._size
        rows, self.total = await self._fetch(offset, self._size)
        pages = max(1, -(-self.total // self._size))
        if self._pages.max != pages:
            self._pages.max = pages
        if int(self._pages.value or 1) > pages:
            self._pages.value = pages  # which refreshes
            return
        if self.table.rows != list(rows):
            self.table.rows = list(rows)
        last = offset + len(rows)
        self._said.text = f"{offset + 1} to {last} of {self.total:,}" if rows else "nothing"
        self._pages.set_visibility(pages > 1)

    async def first(self) -> None:
        """Go to the first page: the list is another one now."""
        if int(self._pages.value or 1) != 1:
            self._pages.value = 1  # which refreshes
        else:
            await self.refresh()
