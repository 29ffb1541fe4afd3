"""Finish."""

from tools.base import ToolError, ToolResult
from tools.session import Session


def submit(session: Session) -> ToolResult:
    """End the run. The best correct candidate of the run, not necessarily the current one, is evaluated again on fresh
    inputs; that evaluation counts."""
    if not any(attempt.evaluation is not None and attempt.evaluation.passed for attempt in session.attempts):
        raise ToolError("No attempt has passed run_benchmark yet; there is nothing to submit.")
    return ToolResult(text="submitted", submitted=True)
