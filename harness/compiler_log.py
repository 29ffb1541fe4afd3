"""The errors in a compiler's output: where in the candidate each is, and its one line, without the noise around it.

Reads what nvcc's front end, ptxas, nvlink, g++, the linker and the loader of a built library write. Notes, candidates
that were not chosen, chains of instantiations and ninja's own lines are left out; long types are shortened.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import takewhile

CANDIDATE = "candidate.py"


@dataclass(frozen=True)
class CompilerError:
    """One error."""

    message: str
    """What is wrong, with the types or the name that the compiler gives in lines of their own."""
    line: int | None
    """Line of the candidate; None if the compiler does not say."""
    shown: str
    """As a line of output: place and message."""


_LOCATED = re.compile(
    r"(?P<file>[^\s:(][^:(]*?)(?:\((?P<nvcc>\d{1,7})\)|:(?P<gcc>\d{1,7})(?::\d+)?): (?:catastrophic |fatal |internal )?"
    r"error(?: #[\w-]+)?: (?P<message>.*)"
)
_OTHER = {
    "nvcc: at the end of the source": re.compile(r"At end of source: error: (?P<message>.*)"),
    "ptxas": re.compile(r"ptxas (?:\S+, line \d+; )?(?:error|fatal)\s*: (?P<message>.*)"),
    "nvlink": re.compile(r"nvlink (?:error|fatal)\s*: (?P<message>.*)"),
    "nvcc": re.compile(r"nvcc fatal\s*: (?P<message>.*)"),
    "compiler": re.compile(r"\S*?(?:g\+\+|c\+\+|cc1plus|cudafe\+\+|cicc)(?:: fatal)?: error: (?P<message>.*)"),
    "linker": re.compile(
        r".*?(?P<message>undefined reference to .*|multiple definition of [`'][^`']*'|cannot find -l.*|ld returned .*)"
    ),
    "loading": re.compile(r"the (?:library|extension) does not load: (?P<message>.*)"),
    "error": re.compile(r"error: (?P<message>.*)"),
}
"""Programs that do not name a line of a source, and how they say what is wrong."""
_CONSEQUENCE = re.compile(
    r"Ptx assembly aborted|ld returned \d+ exit|linker command failed|variable or field '.*' declared void"
    r"|incomplete type \"void\" is not allowed"
)
"""Errors that only follow from another one, before or after it."""
_TYPES = re.compile(r"\s+((?:operand|argument|object) types? (?:is|are): .*|deduced conflicting types .*)")
_TRITON_PLACE = re.compile(r"at (\d{1,7}):\d+:\n")
_TRITON_CARET = re.compile(r"\n *\^\n")
_LEADS = re.compile(r".*(?: required from |: In |In file included from|^\s+from )")
"""A line before an error that says how the compiler came there."""
_PLACE = re.compile(rf"{re.escape(CANDIDATE)}[:(](\d{{1,7}})|at line (\d{{1,7}}) of {re.escape(CANDIDATE)}")


def errors(log: str) -> tuple[CompilerError, ...]:
    """All errors in their order, those left out that only follow from others (unless there is nothing else)."""
    lines = log.replace("‘", "'").replace("’", "'").splitlines()
    matches = [(i, *match) for i, line in enumerate(lines) if (match := _match(line)) is not None]
    # What belongs to an error, before or after it, ends where the next one stands: no line is read for every error.
    edges = [-1, *(i for i, *_ in matches), len(lines)]
    found = [
        _error(lines[edges[n] + 1 : i], lines[i + 1 : edges[n + 2]], who, match)
        for n, (i, who, match) in enumerate(matches)
    ]
    return tuple(error for error in found if not _CONSEQUENCE.search(error.message)) or tuple(found)


def triton_error(message: str, source: str) -> CompilerError | None:
    """What Triton says of a kernel: its place counts from the kernel's own first line."""
    # In two steps, since a candidate may have written the text: where nothing follows one place, nothing follows later.
    place = _TRITON_PLACE.search(message)
    caret = _TRITON_CARET.search(message, place.end()) if place else None
    if place is None or caret is None:
        return None
    first = message[place.end() : caret.start()].partition("\n")[0]
    definition = f"\n{source}".find(f"\n{first}") if first else -1
    said = shorten(" ".join(message[caret.end() :].split()))
    if definition < 0:
        return CompilerError(said, None, f"Triton: {said}")
    line = source.count("\n", 0, definition) + int(place[1])
    return CompilerError(said, line, f"{CANDIDATE}:{line}: {said}")


def _match(line: str) -> tuple[str, re.Match[str]] | None:
    """Who says it ("" for a compiler that names a place) and what."""
    patterns = ("", _LOCATED), *_OTHER.items()
    return next(((who, match) for who, pattern in patterns if (match := pattern.match(line))), None)


def _error(before: list[str], block: list[str], who: str, match: re.Match[str]) -> CompilerError:
    """`before` and `block`: the lines up to the error before it and after it."""
    message = " ".join(match["message"].split()).rstrip(":")
    for line in block[:8]:
        if types := _TYPES.match(line):
            message += f" ({types[1]})"
    if name := _name_at_caret(message, block):
        message += f" (at `{name}`)"
    message = shorten(message)
    if who:
        return CompilerError(message, _used_at(before, block), f"{who}: {message}")
    number = int(match["nvcc"] or match["gcc"])
    where = f"{shorten(match['file'].rsplit('/', 1)[-1])}:{number}: error: {message}"
    if match["file"] == CANDIDATE:
        return CompilerError(message, number, where)
    # In a header, or in a source that does not stand in the candidate as it is.
    used = _used_at(before, block)
    return CompilerError(message, used, where + (f" (used at line {used})" if used else ""))


def _used_at(before: list[str], block: list[str]) -> int | None:
    """Line of the candidate from which an error elsewhere was come to: g++ says it before, nvcc after."""
    led = list(takewhile(_LEADS.match, reversed(before)))
    # Where a header is included says less than where what it defines is used.
    used = [line for line in led if "required from" in line]
    places = [match for line in (*used, *block, *led) if (match := _PLACE.search(line))]
    return int(places[0][1] or places[0][2]) if places else None


def _name_at_caret(message: str, block: list[str]) -> str:
    """The name that nvcc only points at: `name followed by "::" must be a class or namespace name`."""
    if not message.startswith("name ") or len(block) < 2 or block[1].strip() != "^":
        return ""
    match = re.match(r"[\w:]+", block[0][block[1].index("^") :])
    return match[0] if match else ""


def shorten(text: str, limit: int = 240) -> str:
    """Without what only lengthens a message: folders, aliases, the library's inner namespaces, long template
    arguments."""
    text = _FOLDERS.sub("", text[:4000])
    text = re.sub(r" ?\{aka '[^']*'\}| ?\(aka \"[^\"]*\"\)| \[-f\w+\]", "", text)
    text = re.sub(r"\b(?:__cxx11|__gnu_cxx|__ops)::|(?<![\w:])::(?=std::)", "", text)
    text = re.sub(r" ?\[with [^\]]*\]", "", text)
    text = _TEMPLATE.sub(lambda match: match[0] if len(match[0]) <= 26 else "<...>", text)
    return text if len(text) <= limit else text[: limit - 3] + "..."


_FOLDERS = re.compile(r"""(?<![\w./:~-])/(?:[^\s/:"'()<>,]+/)+(?=[^\s/])""")


def _template(depth: int) -> str:
    """Pattern of `<...>` with as many levels inside."""
    return rf"<(?:[^<>]|{_template(depth - 1)})*>" if depth else "<[^<>]*>"


_TEMPLATE = re.compile(rf"(?<=\w)(?!<<){_template(6)}")
