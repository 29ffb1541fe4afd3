"""Text for terminals: columns, one-liners, and nothing that a candidate or a model wrote reaching the terminal raw."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def plain(text: str) -> str:
    """The text without control characters, newlines apart: an escape sequence could forge a verdict."""
    return "".join(char if char.isprintable() or char == "\n" else " " if char == "\t" else "�" for char in text)


def one_line(text: str, width: int = 100) -> str:
    """The first words of a text, white space collapsed, at most `width` characters."""
    flat = " ".join(plain(text).split())
    return flat if len(flat) <= width else flat[: width - 3] + "..."


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
