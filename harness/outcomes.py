"""What came of asking ranks: answers, errors, ends, stacks. Imports no torch."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass, field
from typing import Any

from harness.progress import Words
from harness.wording import one_line


@dataclass(frozen=True)
class Frame:
    file: str
    line: int
    function: str


@dataclass
class RankOutcome:
    """What came of asking one rank."""

    rank: int
    reply: dict[str, Any] | None = None
    """The reply of a rank that succeeded."""
    error: dict[str, Any] | None = None
    """type, bases, message, line, stack: as the rank reported."""
    exit: str = ""
    """`exit 1`, `SIGSEGV`: the process ended."""
    garbled: bool = False
    """It sent what is no answer to the request."""
    silent: bool = False
    """No answer at the deadline."""
    words: Words | None = None
    stack: tuple[Frame, ...] = ()
    """Of a silent rank, innermost first."""
    busy: float = 0.0
    """Of a silent rank: how much of a processor it used while it was looked at."""

    @property
    def ok(self) -> bool:
        return self.reply is not None


@dataclass
class Outcome:
    """What came of asking all ranks. `ok` only if every one answered well."""

    ranks: list[RankOutcome] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return all(r.ok for r in self.ranks)

    @property
    def replies(self) -> list[dict[str, Any]]:
        return [r.reply for r in self.ranks if r.reply is not None]


# No part of it can go beyond the next one, so that no text takes longer than its length; no number of many digits.
_FRAME = re.compile(r'File "([^"\n]{0,1000})", line ([0-9]{1,9}) in (\S{1,1000})')


def parse_stack(text: str) -> tuple[Frame, ...]:
    """The main thread's frames, innermost first, in a dump of faulthandler's: the thread that took the signal."""
    current = text.partition("Current thread")[2].partition("\n\n")[0]
    return tuple(Frame(f, int(n), fn) for f, n, fn in _FRAME.findall(current))


_MAX_BASES, _MAX_LINE = 100, 10**9


def checked_error(error: Any) -> dict[str, Any]:
    """The error as `harness.rank.describe_error` makes it, whatever the rank sent."""
    given = error if isinstance(error, dict) else {}
    bases, line = given.get("bases"), given.get("line")
    return {
        "type": one_line(given.get("type", "Exception"), 200) or "Exception",
        "bases": [str(base)[:200] for base in bases[:_MAX_BASES]] if isinstance(bases, list) else [],
        "message": str(given.get("message", ""))[:20000],
        "line": line if type(line) is int and 0 <= line <= _MAX_LINE else None,
        "stack": str(given.get("stack", ""))[-6000:],
    }


def describe_exit(status: int | None) -> str:
    """`exit 3`, `SIGSEGV`, or `closed its channel` from a wait status."""
    if status is None:
        return "closed its channel"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return signal.Signals(number).name
        except ValueError:  # real-time signals have no names
            return f"signal {number}"
    return f"exit {os.WEXITSTATUS(status)}"
