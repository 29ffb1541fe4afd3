"""Where the time goes."""

from pathlib import Path

from harness.evaluate import CandidateFailedError
from harness.types import to_json
from tools.base import ToolResult
from tools.profile_text import profile_text
from tools.session import Session
from tools.text import evaluation_text


def profile(session: Session, kernel: str = "") -> ToolResult:
    """Where the current candidate's time goes: what binds it, bytes over NVLink and HBM against the ideal, per rank
    communication, computation, their overlap and waiting, the top kernels with what their machine code shows, and up
    to three hints for the next edit. The candidate must be correct.

    Arguments:
    kernel: part of a kernel's name: its hardware counters as well (bytes, stalls, tensor cores); empty for none.
    """
    attempt = session.current
    request = session.request(attempt.candidate)
    try:
        found, device_s = session.sandbox.profile(request, session.traces_dir, kernel, allowance=session.allowance)
    except CandidateFailedError as failed:
        attempt.evaluation = attempt.latest = failed.evaluation
        session.note(failed.evaluation)
        return ToolResult(
            text=evaluation_text(failed.evaluation),
            candidate=attempt.candidate,
            evaluation=failed.evaluation,
            device_s=failed.evaluation.device_s,
        )
    measured = attempt.evaluation.measurement if attempt.evaluation else None
    return ToolResult(
        text=profile_text(found, measured),
        candidate=attempt.candidate,
        # Relative to the record, which may be moved or sent to somebody.
        data={"profile": to_json(found.model_copy(update={"trace": f"traces/{Path(found.trace).name}"}))},
        device_s=device_s,
    )
