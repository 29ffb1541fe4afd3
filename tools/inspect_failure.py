"""Explain the last failure."""

from tools.base import ToolError, ToolResult
from tools.session import Attempt, Session
from tools.text import build_text, failure_text


def inspect_failure(session: Session) -> ToolResult:
    """Explain why the latest candidate that failed did so: its cause where that is known, per rank what it was doing,
    which elements are wrong and by how much, the stack and the source line, compiler errors with their lines."""
    for attempt in reversed(session.attempts):
        before = session.before(attempt, attempt.findings)
        if text := _failure(attempt, before):
            # An earlier one does not become the current one again, neither in the record nor when a run is resumed.
            current = attempt.candidate if attempt is session.current else None
            return ToolResult(text=f"attempt {attempt.number}: {text}", candidate=current)
    raise ToolError("No attempt has failed so far.")


def _failure(attempt: Attempt, before: int | None) -> str:
    """Text on how an attempt failed; "" if it did not."""
    source = attempt.candidate.source
    if attempt.latest is not None:
        return "" if attempt.latest.passed else failure_text(attempt.latest, source, before)
    if attempt.build is not None and attempt.build.verdict is not None:
        return build_text(f"{attempt.build.verdict} at stage build", attempt.build, source, before)
    return ""
