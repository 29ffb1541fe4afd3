"""The build stage: policy gate, then a process without a device that compiles what the candidate will need."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from harness import cache, diagnosis, policy
from harness.errors import HarnessError
from harness.processes import Processes
from harness.progress import Phase
from harness.ranks import checked_error
from harness.types import BuildReport, Candidate, Limits, Stage, Verdict

_COMPILED = ("kit.build", "load_inline", "compile_cuda_extension")
"""Names in a candidate that mean a compiler will run."""


class Builds:
    """What has been built in this session, by candidate."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._reports: dict[str, BuildReport] = {}

    def build(self, candidate: Candidate) -> BuildReport:
        """No lease, no device. Raises HarnessError if a compiler is needed and missing."""
        if (found := policy.violation(candidate.source)) is not None:
            return BuildReport(candidate=candidate.hash, verdict=Verdict.policy, summary=found)
        if candidate.hash not in self._reports:
            if any(name in candidate.source for name in _COMPILED):
                # Asked here, because a rank that says so cannot be believed: a missing compiler is not its fault.
                self._processes.platform.compile_command(Path("source"), Path("output"), [])
                _check_cache()
            report = _build(self._processes, candidate)
            if report.verdict is Verdict.timeout:
                return report  # may have been the machine's fault: not remembered
            self._reports[candidate.hash] = report
        return self._reports[candidate.hash]


def _check_cache() -> None:
    """Raises HarnessError if nothing can be written to the build cache: that too is not the candidate's fault."""
    try:
        cache.root().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache.root()) as file:
            file.write(bytes(1 << 20))
    except OSError as error:
        raise HarnessError(f"cannot write to the build cache {cache.root()}: {error.strerror}") from None


def write_candidate(folder: Path, candidate: Candidate) -> Path:
    """`candidate.py` in a folder of its own: its name in every stack and compiler message."""
    path = folder / "candidate.py"
    path.write_text(candidate.source, encoding="utf-8")
    return path


def load_deadline(limits: Limits) -> Callable[[Phase], float]:
    """Seconds without progress while a candidate is imported: compiling gets the build's."""
    return lambda phase: limits.build_s if phase is Phase.building else limits.load_s


def _build(processes: Processes, candidate: Candidate) -> BuildReport:
    started = time.monotonic()
    ranks = processes.spawn("build", 1)
    try:
        path = write_candidate(ranks.scratch, candidate)
        outcome = ranks.ask("build", {"path": str(path)}, deadline_s=load_deadline(processes.limits))
        seconds = time.monotonic() - started
        if outcome.ok:
            reply = outcome.replies[0]
            built = tuple(str(name) for name in reply["built"])
            if reply["failure"] is None:
                return BuildReport(
                    candidate=candidate.hash, verdict=None, summary="built", built=built, build_s=seconds
                )
            outcome.ranks[0].error = checked_error(reply["failure"])
            outcome.ranks[0].reply = None
        elif outcome.ranks[0].exit:
            # The import ended its process. The load stage will see the same where it counts.
            return BuildReport(candidate=candidate.hash, verdict=None, summary="not built ahead", build_s=seconds)
        else:
            built = ()
        verdict, summary, reports = diagnosis.judge_failure(outcome, Stage.build, [ranks.log(0)])
        error = outcome.ranks[0].error
        log = error["message"] if error and "BuildError" in error["bases"] else reports[0].stack
        return BuildReport(
            candidate=candidate.hash,
            verdict=verdict,
            summary=summary.removeprefix("rank 0: "),
            log=log,
            built=built,
            build_s=seconds,
        )
    finally:
        ranks.kill()
