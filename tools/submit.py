"""Finish."""

from tools.base import ToolError, ToolResult
from tools.session import Session


def submit(session: Session) -> ToolResult:
    """End the run. The best correct candidate of the run, not necessarily the current one, is evaluated again on fresh
    inputs; that evaluation counts."""
    if not session.has_best:
        raise ToolError("No candidate has passed run_benchmark every time it was run; there is nothing to submit.")
    return ToolResult(text="submitted", submitted=True)
