"""Build without running."""

from tools.base import ToolResult
from tools.session import Session
from tools.text import build_text


def compile_candidate(session: Session) -> ToolResult:
    """Compile the current candidate without running it: policy, Python syntax, imports, C++ or CUDA sources. Cheap:
    no device is used, and what is built is kept for the next run."""
    attempt = session.current
    report = attempt.build = session.sandbox.compile(attempt.candidate, allowance=session.allowance)
    if report.verdict is None:
        built = f" Built: {', '.join(report.built)}." if report.built else " It builds nothing ahead of its first call."
        return ToolResult(text=f"compiled in {report.build_s:.1f} s.{built}", candidate=attempt.candidate)
    before = session.before(attempt, report.findings)
    return ToolResult(
        text=build_text(report.verdict.upper(), report, attempt.candidate.source, before),
        candidate=attempt.candidate,
        data={"build": report.model_dump(mode="json")},
    )
