"""Candidates kept as files, in tests/evil and tests/honest: what their docstrings say about them."""

import ast
import re
from pathlib import Path
from typing import NamedTuple

from harness.types import Stage, Verdict


class Written(NamedTuple):
    """A candidate's text and what its author expects of it."""

    source: str
    rows: tuple[str, ...]
    """Rows of the catalogue of cheats, such as `A3`."""
    expected: frozenset[Verdict]
    """Any of these is right; `passed` alone for an honest one."""
    stage: Stage | None
    """The stage without which it cannot be found out: `timing`, or None."""


def load(path: Path) -> Written:
    """Reads `Catalogue: A3, B8`, `Expected: race or integrity`, `Stage: timing` from the docstring; all may be absent.

    Raises ValueError for a verdict or stage that does not exist, and for an evil candidate without `Expected`."""
    source = path.read_text(encoding="utf-8")
    said = _docstring(source)
    rows = re.findall(r"\b[A-D]\d+\b", _line(said, "Catalogue"))
    expected = frozenset(Verdict(word) for word in re.split(r"\s+or\s+|,\s*", _line(said, "Expected")) if word)
    if "evil" in path.parts and (not expected or Verdict.passed in expected):
        raise ValueError(f"{path.name}: its docstring must say which verdict it is to get")
    stage = _line(said, "Stage")
    return Written(source, tuple(rows), expected or frozenset({Verdict.passed}), Stage(stage) if stage else None)


def problem(path: Path) -> int:
    """The problem that a file is for: `p13_...` is for 13, and a file without such a prefix for 1."""
    match = re.match(r"p(\d\d)_", path.name)
    return int(match[1]) if match else 1


def _docstring(source: str) -> str:
    try:
        return ast.get_docstring(ast.parse(source)) or ""
    except SyntaxError:  # some candidates are not Python
        return source


def _line(text: str, name: str) -> str:
    match = re.search(rf"^{name}:[ \t]*(.*?)[ \t]*$", text, re.M)
    return match[1] if match else ""
