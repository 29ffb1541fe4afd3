"""A report as one HTML file that needs no network: tables, plots as SVG, and a script that sorts and filters.

What models, candidates and folders are called reaches the page through Jinja's escaping only, and the page's own policy
runs no script but ours.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.machine import harness_version
from runs.report.formats import numeric, shown, sort_key
from runs.report.plots import plots
from runs.report.study import Study
from runs.report.table import Table

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class _Cell:
    text: str
    key: str
    """What its column is sorted by; empty for nothing."""
    number: bool


def as_html(study: Study, tables: list[Table]) -> str:
    """Raises UsageError without matplotlib."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = (_FOLDER / "page.js").read_text(encoding="utf-8")
    return environment.get_template("page.html.j2").render(
        study=study,
        tables=tables,
        plots=plots(study),
        headings=lambda table: zip(table.columns, numeric(table), strict=True),
        lines=_lines,
        style=Markup((_FOLDER / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        version=harness_version(),
        made=time.strftime("%Y-%m-%d %H:%M"),
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
