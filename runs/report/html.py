"""A report as one HTML file that needs no network: tables, plots as SVG, and a script that sorts and filters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runs.html.page import page
from runs.report.formats import numeric, shown, sort_key
from runs.report.plots import plots
from runs.report.study import Study
from runs.report.table import Table


@dataclass(frozen=True)
class _Cell:
    text: str
    key: str
    """What its column is sorted by; empty for nothing."""
    number: bool


def as_html(study: Study, tables: list[Table]) -> str:
    """Raises UsageError without matplotlib."""
    return page(
        Path(__file__).parent / "page.html.j2",
        study=study,
        tables=tables,
        plots=plots(study),
        headings=lambda table: zip(table.columns, numeric(table), strict=True),
        lines=_lines,
    )


def _lines(table: Table) -> Iterator[list[_Cell]]:
    for row in table.rows:
        yield [
            _Cell(
                shown(value, column),
                str(sort_key(value)),
                not isinstance(value, str) and value is not None,
            )
            for value, column in zip(row, table.columns, strict=True)
        ]
