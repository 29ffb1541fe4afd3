"""Change part of the candidate."""

from harness.policy import too_long
from tools.base import ToolError, ToolResult
from tools.session import Session
from tools.write_candidate import written_text


def edit_candidate(session: Session, old: str, new: str) -> ToolResult:
    """Replace one passage of the current candidate. The passage must occur exactly once.

    Arguments:
    old: The passage to replace, exactly as it stands in the candidate, line breaks and spaces included.
    new: What to put in its place.
    """
    source = session.current.candidate.source
    count = source.count(old) if old else 0
    if count != 1:
        where = "does not occur" if count == 0 else f"occurs {count} times"
        raise ToolError(
            f"old {where} in the candidate; copy a longer passage exactly (`read` with what=candidate shows it)."
        )
    edited = source.replace(old, new)
    if why := too_long(edited):
        raise ToolError(f"with the change {why}.")
    attempt = session.write(edited)
    line = source[: source.find(old)].count("\n") + 1
    return ToolResult(
        text=f"{written_text(attempt.number, edited)} (change at line {line})", candidate=attempt.candidate
    )
