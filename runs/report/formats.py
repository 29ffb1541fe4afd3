"""Tables as CSV, JSON, Markdown and LaTeX. What models, candidates and folders are called is text in all of them."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable
from typing import Any

from harness.types import Ratio
from runs.metrics import Estimate
from runs.report.study import Study
from runs.report.table import Column, Table, Value

_INTERVAL = (Estimate, Ratio)
_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "%": r"\%", "&": r"\&", "#": r"\#", "_": r"\_", "$": r"\$",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip


def shown(value: Value, column: Column) -> str:
    """As a person reads it; an interval stands behind its figure. Empty for what there is not."""
    if value is None or value == "":
        return ""
    if isinstance(value, _INTERVAL):
        style, sign = column.style, column.style.lstrip("+")
        if sign.endswith("%"):  # one sign for all three figures
            low, high = f"{value.low:{style}}".removesuffix("%"), f"{value.high:{style}}"
            return f"{value.value:{style}} [{low}, {high}]"
        if isinstance(value, Ratio) and value.low == value.high:  # the pkb protocol has none
            return f"{value.value:{style}}"
        return f"{value.value:{style}} [{value.low:{style}}, {value.high:{style}}]"
    if isinstance(value, float):
        return f"{value:{column.style or '.6g'}}"
    return f"{value:,}" if isinstance(value, int) and abs(value) >= 10_000 else _flat(str(value))


def sort_key(value: Value) -> float | str:
    """What a column is sorted by: the figure of an interval; empty for what there is not."""
    if isinstance(value, _INTERVAL):
        return value.value
    return "" if value is None else value


def as_csv(table: Table) -> str:
    """With a header; an interval is three columns, numbers are not rounded."""
    wide = [any(isinstance(row[i], _INTERVAL) for row in table.rows) for i in range(len(table.columns))]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    header: list[str] = []
    for column, is_wide in zip(table.columns, wide, strict=True):
        header += [column.name, f"{column.name} low", f"{column.name} high"] if is_wide else [column.name]
    writer.writerow(_inert(name) for name in header)
    for row in table.rows:
        cells: list[Any] = []
        for value, is_wide in zip(row, wide, strict=True):
            if is_wide:
                cells += [value.value, value.low, value.high] if isinstance(value, _INTERVAL) else [value, None, None]
            else:
                cells.append(_inert(value) if isinstance(value, str) else value)
        writer.writerow(cells)
    return out.getvalue()


def as_json(study: Study, tables: Iterable[Table]) -> str:
    """Strict JSON: how it was counted, every table by its key, every run's row whole."""
    document = {
        "title": study.title,
        "problems": [key._asdict() for key in study.problems],
        "k": list(study.ks),
        "fast": study.fast.model_dump(mode="json"),
        "tables": {table.key: [_record(table, row) for row in table.rows] for table in tables},
        "rows": [
            {"configuration": study.label_of(row)} | json.loads(row.model_dump_json(round_trip=False))
            for row in study.rows
        ],
        "unreadable": list(study.unreadable),
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def as_markdown(tables: Iterable[Table]) -> str:
    return "\n".join(_markdown(table) for table in tables)


def as_latex(tables: Iterable[Table]) -> str:
    """One `tabular` per table, with rules that need no package."""
    return "\n".join(_latex(table) for table in tables)


def _record(table: Table, row: tuple[Value, ...]) -> dict[str, Any]:
    return {column.name: _plain(value) for column, value in zip(table.columns, row, strict=True)}


def _plain(value: Value) -> Any:
    if isinstance(value, _INTERVAL):
        return {"value": _finite(value.value), "low": _finite(value.low), "high": _finite(value.high)}
    return _finite(value) if isinstance(value, float) else value


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _inert(text: str) -> str:
    """No formula in a spreadsheet."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def _markdown(table: Table) -> str:
    lines = [f"## {table.title}", "", table.note, ""]
    lines.append(_pipes(_inline(column.name) for column in table.columns))
    lines.append("| " + " | ".join("---:" if number else "---" for number in numeric(table)) + " |")
    for row in table.rows:
        cells = [(shown(value, column), value) for value, column in zip(row, table.columns, strict=True)]
        lines.append(_pipes(_inline(text) if isinstance(value, str) else text for text, value in cells))
    return "\n".join(lines) + "\n"


def _pipes(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _inline(text: str) -> str:
    """Text that is no markup."""
    return re.sub(r"([\\|`*_<>\[\]])", r"\\\1", _flat(text))


def _latex(table: Table) -> str:
    spec = "".join("r" if number else "l" for number in numeric(table))
    lines = [f"% {_flat(table.title)}", rf"\begin{{tabular}}{{{spec}}}", r"\hline"]
    lines += [_ampersands(column.name for column in table.columns), r"\hline"]
    for row in table.rows:
        lines.append(_ampersands(shown(value, column) for value, column in zip(row, table.columns, strict=True)))
    return "\n".join([*lines, r"\hline", r"\end{tabular}"]) + "\n"


def _ampersands(cells: Iterable[str]) -> str:
    return " & ".join("".join(_LATEX.get(char, char) for char in _flat(cell)) for cell in cells) + r" \\"


def numeric(table: Table) -> list[bool]:
    """Which columns hold numbers."""
    return [
        bool(column.style) or any(isinstance(row[i], int | float) for row in table.rows)
        for i, column in enumerate(table.columns)
    ]


def _flat(text: str) -> str:
    """One line without control characters."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())
