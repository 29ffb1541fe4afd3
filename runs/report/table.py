"""A table as data, from which every format is made."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.types import Ratio
from runs.metrics import Estimate

Value = str | int | float | Estimate | Ratio | None
Style = str
"""How a number reads: a format specification such as `.2f`, `.1%`, or empty for text and whole numbers."""


@dataclass(frozen=True)
class Column:
    name: str
    style: Style = ""


@dataclass(frozen=True)
class Table:
    key: str
    """Names it in file names and on the command line."""
    title: str
    note: str
    columns: tuple[Column, ...]
    rows: list[tuple[Value, ...]] = field(default_factory=list)
    """As long as `columns`."""
    anchors: tuple[str, ...] = ()
    """One per row, for links into the page; or empty."""
