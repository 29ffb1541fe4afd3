"""Look something up."""

from __future__ import annotations

from pathlib import Path

from harness import kit_header
from problems.catalogue import statement
from tools.base import ToolError, ToolResult
from tools.session import Attempt, Session
from tools.text import evaluation_text

_PROMPTS = Path(__file__).resolve().parent.parent / "prompts"


def read(session: Session, what: str) -> ToolResult:
    """Read the current candidate, the reference, an earlier attempt, or a page.

    Arguments:
    what: `candidate`, `reference`, `attempts` (one line each), `attempt N` (its source and result), `header`
        (ringsmith.h, what kernels may include), `examples` (a list) or the name of an example.
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
    # An example that solves the problem at hand would be the answer.
    found = sorted((_PROMPTS / "examples" / session.backend).glob("*.py"))
    examples = {path.stem: path for path in found if not path.stem.startswith(f"p{session.entry.number:02d}_")}
    if what == "examples":
        return ToolResult(text="\n".join(f"{name}: {_first_line(path)}" for name, path in examples.items()) or "none")
    if what in examples:
        return ToolResult(text=examples[what].read_text())
    raise ToolError(
        f"there is no {what!r}; read takes candidate, reference, attempts, attempt N, header, examples"
        + (f" or one of {', '.join(examples)}" if examples else "")
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
    return "\n".join(f"{n:4d} | {line}" for n, line in enumerate(source.splitlines(), 1))


def _first_line(path: Path) -> str:
    return path.read_text().lstrip().removeprefix('"""').splitlines()[0].removesuffix('"""')
