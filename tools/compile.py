"""Build without running."""

from harness.types import BuildReport
from tools.base import ToolResult
from tools.session import Session
from tools.text import build_text


def compile_candidate(session: Session) -> ToolResult:
    """Compile the current candidate without running it: policy, Python syntax, imports, C++ or CUDA sources. Cheap:
    no device is used, and what is built is kept for the next run."""
    attempt = session.current
    report = attempt.build = session.sandbox.compile(attempt.candidate, allowance=session.allowance)
    text = compiled_text(report, attempt.candidate.source, session.before(attempt, report.findings))
    data = {} if report.verdict is None else {"build": report.model_dump(mode="json")}
    return ToolResult(text=text, candidate=attempt.candidate, data=data)


def compiled_text(report: BuildReport, source: str, before: int | None = None) -> str:
    """What the tool says of a report."""
    if report.verdict is not None:
        return build_text(report.verdict.upper(), report, source, before)
    built = f" Built: {', '.join(report.built)}." if report.built else " It builds nothing ahead of its first call."
    return f"compiled in {report.build_s:.1f} s.{built}"
