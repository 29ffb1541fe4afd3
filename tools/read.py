"""Look something up."""

from __future__ import annotations

from harness import kit_header
from harness.code_text import source_lines
from problems.catalogue import statement
from tools import pages
from tools.base import ToolError, ToolResult
from tools.session import Attempt, Session
from tools.text import evaluation_text


def read(session: Session, what: str) -> ToolResult:
    """Read the current candidate, the reference, an earlier attempt, a page of knowledge, or an example.

    Arguments:
    what: `candidate`, `reference`, `attempts` (one line each), `attempt N` (its source and result), `header`
        (ringsmith.h, what kernels may include), `pages` or `examples` (a list), or the name of a page or example.
    """
    what = what.strip()
    if what == "candidate":
        return ToolResult(text=_numbered(session.current.candidate.source))
    if what == "reference":
        return ToolResult(text=statement(session.entry))
    if what == "attempts":
        return ToolResult(text="\n".join(_line(attempt) for attempt in session.attempts) or "no attempts yet")
    if what.startswith("attempt "):
        return ToolResult(text=_attempt(session, what.removeprefix("attempt ")))
    if what == "header":
        return ToolResult(text=kit_header())
    knowledge = pages.pages(session.backend)
    examples = pages.examples(session.backend, session.entry.number)
    for name, texts in (("pages", knowledge), ("examples", examples)):
        if what == name:
            return ToolResult(text="\n".join(f"{n}: {pages.summary(text)}" for n, text in texts.items()) or "none")
        if what in texts:
            return ToolResult(text=texts[what])
    raise ToolError(
        f"there is no {what!r}; read takes candidate, reference, attempts, attempt N, header, pages, examples"
        + (f" or one of {', '.join([*knowledge, *examples])}" if knowledge or examples else "")
    )


def _attempt(session: Session, number: str) -> str:
    if not number.isdecimal() or len(number) > 6 or not 1 <= int(number) <= len(session.attempts):
        raise ToolError(f"there is no attempt {number}; there are {len(session.attempts)}.")
    attempt = session.attempts[int(number) - 1]
    return f"{_line(attempt)}\n\n{attempt.candidate.source}"


def _line(attempt: Attempt) -> str:
    if attempt.evaluation is not None:
        return f"attempt {attempt.number}: {evaluation_text(attempt.evaluation).splitlines()[0]}"
    if attempt.build is not None:
        return f"attempt {attempt.number}: {attempt.build.summary}, not run"
    return f"attempt {attempt.number}: not compiled"


def _numbered(source: str) -> str:
    return "\n".join(f"{n:4d} | {line}" for n, line in enumerate(source_lines(source), 1))
