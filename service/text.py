"""Text for terminals: columns, and blocks that are moved right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.wording import one_line, plain


def columns(rows: Iterable[Sequence[str]]) -> str:
    """Rows as left-aligned columns, two spaces apart; the last column is not padded."""
    cells = [[one_line(cell, 400) for cell in row] for row in rows]
    if not cells:
        return ""
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    )


def indent(text: str, by: str = "    ") -> str:
    """Every line of a text moved right."""
    return "\n".join(by + line for line in plain(text).rstrip().splitlines())
