"""Replace the candidate."""

from harness.code_text import source_lines
from harness.policy import too_long
from tools.base import ToolError, ToolResult
from tools.session import Session
from tools.text import context


def write_candidate(session: Session, source: str) -> ToolResult:
    """Write the whole candidate: one Python module that defines `solution`. Replaces the current text.

    Arguments:
    source: The module's complete source text.
    """
    if not source.strip():
        raise ToolError("source is empty; send the whole module.")
    if why := too_long(source):
        raise ToolError(f"{why}; send a shorter module.")
    attempt = session.write(source)
    return ToolResult(text=written_text(attempt.number, source), candidate=attempt.candidate)


def written_text(number: int, source: str) -> str:
    """What was written, with Python's own objection if it does not parse."""
    text = f"attempt {number}: {len(source_lines(source))} lines written."
    try:
        compile(source, "candidate.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        shown = "\n" + "\n".join(context(source, line)) if line else ""
        return f"{text}\nIt is not valid Python: {error}{shown}"
    except (RecursionError, MemoryError):
        return f"{text}\nIt is not valid Python: an expression is nested too deeply."
    return text
