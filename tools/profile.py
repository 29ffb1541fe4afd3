"""Where the time goes."""

from pathlib import Path

from harness.evaluate import CandidateFailedError
from harness.types import to_json
from tools.base import ToolResult
from tools.session import Session
from tools.text import evaluation_text, profile_text


def profile(session: Session) -> ToolResult:
    """Profile a few calls of the current candidate: per rank the wall time and the top kernels and calls. The
    candidate must be correct."""
    attempt = session.current
    request = session.request(attempt.candidate)
    try:
        found, device_s = session.sandbox.profile(request, session.traces_dir)
    except CandidateFailedError as failed:
        attempt.evaluation = attempt.latest = failed.evaluation
        session.note(failed.evaluation)
        return ToolResult(
            text=evaluation_text(failed.evaluation),
            candidate=attempt.candidate,
            evaluation=failed.evaluation,
            device_s=failed.evaluation.device_s,
        )
    return ToolResult(
        text=profile_text(found),
        candidate=attempt.candidate,
        # Relative to the record, which may be moved or sent to somebody.
        data={"profile": to_json(found.model_copy(update={"trace": f"traces/{Path(found.trace).name}"}))},
        device_s=device_s,
    )
