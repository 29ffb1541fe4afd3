"""Check and time the candidate."""

from __future__ import annotations

from problems.spec import ProblemError
from tools.base import ToolError, ToolResult
from tools.session import Session
from tools.text import evaluation_text


def run_benchmark(session: Session, case: str | None = None, timing: bool = True) -> ToolResult:
    """Run the current candidate on all ranks: correctness on fresh secret inputs, then timing against the reference.

    Arguments:
    case: Sizes to use instead of the task's own, e.g. `odd` for uneven sizes or `tiny`. Only the task's own case
        counts for the target.
    timing: false stops after correctness, which is faster.
    """
    attempt = session.current
    try:
        request = session.request(attempt.candidate, case=case, timing=timing)
        evaluation = session.sandbox.evaluate(request, allowance=session.allowance)
    except ProblemError as error:
        raise ToolError(str(error)) from None
    # Another case is a side question: it is recorded as data, so that it cannot become the run's best.
    own = evaluation.case == session.case.name
    attempt.latest = evaluation
    before = session.before(attempt, evaluation.findings)
    text = evaluation_text(evaluation, attempt.candidate.source, before)
    if own:
        attempt.evaluation = evaluation
        if evaluation.passed and session.once_failed(attempt.candidate):
            text += "\nThis same text failed before, so it is right only sometimes: it cannot be the best."
        session.note(evaluation)
    return ToolResult(
        text=text,
        candidate=attempt.candidate,
        evaluation=evaluation if own else None,
        data={} if own else {"other_case": evaluation.model_dump(mode="json")},
        device_s=evaluation.device_s,
    )
