"""A candidate's text in colours: Python, and the CUDA or C++ inside it, which is most of what is worked on."""

from __future__ import annotations

import re
from collections.abc import Collection

from rich.syntax import Syntax
from rich.text import Text

from harness.wording import plain

_STRING = re.compile(r"(?P<quote>\"\"\"|''')(?P<inner>.*?)(?P=quote)", re.S)
_C = re.compile(r'^\s*#\s*include\b|\bextern "C"|\b__global__\b', re.M)
"""What only C++ and CUDA say."""


def highlighted(source: str, dark: bool, marked: Collection[int] = ()) -> Text:
    """With line numbers, those in `marked` pointed at. Sixteen colours, which every terminal has."""
    source = plain(source.expandtabs(4))
    python, text, at = _in_colours(source, "python", dark), Text(), 0
    for string in _STRING.finditer(source):
        if _C.search(string["inner"]):
            start, end = string.span("inner")
            text.append_text(python[at:start])
            text.append_text(_in_colours(source[start:end], "cpp", dark))
            at = end
    text.append_text(python[at:])
    lines = text.split("\n", allow_blank=True)
    width = len(str(len(lines)))
    return Text("\n").join(_numbered(line, number, width, number in marked) for number, line in enumerate(lines, 1))


def changes(diff: str, dark: bool) -> Text:
    """A unified diff in colours."""
    return _in_colours(plain(diff.expandtabs(4)), "diff", dark)


def _in_colours(source: str, language: str, dark: bool) -> Text:
    text = Syntax("", language, theme="ansi_dark" if dark else "ansi_light").highlight(source)
    return text[: len(source)]  # without the line break that a lexer adds


def _numbered(line: Text, number: int, width: int, marked: bool) -> Text:
    if marked:
        line.stylize("bold underline")
    return Text.assemble((f"{'❱' if marked else ' '}{number:>{width}} ", "bold red" if marked else "dim"), line)
