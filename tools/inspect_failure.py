"""Explain the last failure."""

from tools.base import ToolError, ToolResult
from tools.session import Session
from tools.text import failure_text, log_lines, tidy


def inspect_failure(session: Session) -> ToolResult:
    """Explain why the latest candidate that failed did so: per rank what it was doing, which elements are wrong and
    by how much, the stack and the source line, compiler errors with their lines."""
    for attempt in reversed(session.attempts):
        source = attempt.candidate.source
        if attempt.latest is not None and not attempt.latest.passed:
            text = failure_text(attempt.latest, source)
        elif attempt.latest is None and attempt.build is not None and attempt.build.verdict is not None:
            text = "\n".join(
                [
                    f"{attempt.build.verdict} at stage build: {tidy(attempt.build.summary)}",
                    *log_lines(attempt.build.log, source),
                ]
            )
        else:
            continue
        return ToolResult(text=f"attempt {attempt.number}: {text}", candidate=attempt.candidate)
    raise ToolError("No attempt has failed so far.")
