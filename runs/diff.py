"""How two candidates differ, line by line."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from harness.errors import UsageError

_MOST_LINES = 20_000
"""Of one side: beyond it a comparison could take minutes."""
Tag = Literal["equal", "replace", "delete", "insert"]
Change = tuple[Tag, int, int, int, int]
"""A range of old lines and one of new ones, from 0 (`difflib`)."""


@dataclass(frozen=True)
class DiffLine:
    mark: Literal[" ", "+", "-", "@"]
    """`@`: lines are left out here; `text` says how many."""
    text: str
    old: int | None = None
    """Line number from 1."""
    new: int | None = None


def lines_of(text: str) -> list[str]:
    """As a compiler counts them."""
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n")


def changes(old: list[str], new: list[str]) -> list[Change]:
    """All of both sides in order. Raises UsageError for texts that are too long."""
    if max(len(old), len(new)) > _MOST_LINES:
        raise UsageError(f"a text of more than {_MOST_LINES:,} lines is not compared")
    return SequenceMatcher(None, old, new).get_opcodes()


def diff(old: str, new: str, context: int | None = 3) -> list[DiffLine]:
    """`context`: unchanged lines that are kept on each side of a change; None: all. Empty for the same texts, unless
    all are kept. Raises UsageError as `changes`."""
    before, after = lines_of(old), lines_of(new)
    lines: list[DiffLine] = []
    for tag, i1, i2, j1, j2 in changes(before, after):
        if tag == "equal":
            same = [DiffLine(" ", before[i], i + 1, i + 1 + j1 - i1) for i in range(i1, i2)]
            lines += same if context is None else _cut(same, context, i1 == 0, i2 == len(before) and j2 == len(after))
        else:
            lines += [DiffLine("-", before[i], old=i + 1) for i in range(i1, i2)]
            lines += [DiffLine("+", after[j], new=j + 1) for j in range(j1, j2)]
    return lines


def _cut(same: list[DiffLine], context: int, first: bool, last: bool) -> list[DiffLine]:
    head, tail = 0 if first else context, 0 if last else context
    left_out = len(same) - head - tail
    if left_out <= 1 and not (first and last):
        return same
    if first and last:
        return []
    return [
        *same[:head],
        DiffLine("@", f"... {left_out} lines that are the same"),
        *(same[-tail:] if tail else []),
    ]
