"""The build stage: policy gate, then a process without a device that compiles what the candidate will need."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import cache, causes, diagnosis, machine, policy, store
from harness.errors import HarnessError
from harness.outcomes import checked_error
from harness.processes import Processes
from harness.progress import Phase
from harness.ranks import RankSet
from harness.types import BuildReport, Candidate, Limits, Stage, Verdict
from harness.wording import one_line

_CORES_PER_BUILD = 8
_MAX_BUILT = 1000
_COMPILED = ("kit.build", "load_inline", "compile_cuda_extension")
"""Names in a candidate that mean a compiler will run."""


@dataclass
class _Running:
    """A build that has been begun."""

    ranks: RankSet
    since: float


class Builds:
    """What has been built in this session, by candidate."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._reports: dict[str, BuildReport] = {}
        self._queue: list[Candidate] = []
        self._running: dict[str, _Running] = {}

    def ahead(self, candidates: Sequence[Candidate]) -> None:
        """Begin to build what will be asked for, a few at a time while evaluations go on. On a machine of a few cores
        nothing is built ahead: ranks are timed on them."""
        self._queue = [c for c in candidates if c.hash not in self._reports and _violation(c) is None]
        self._top_up()

    def _top_up(self) -> None:
        at_once = (machine.cpu().cores - 2 * self._processes.world_size) // _CORES_PER_BUILD
        while self._queue and len(self._running) < at_once:
            candidate = self._queue.pop(0)
            if candidate.hash not in self._running and candidate.hash not in self._reports:
                self._running[candidate.hash] = _begin(self._processes, candidate)

    def know(self, report: BuildReport) -> None:
        """Take over what another session of this machine has found out; the build cache is common."""
        if report.verdict is not Verdict.timeout:  # may have been the machine's fault
            self._reports[report.candidate] = report

    def build(self, candidate: Candidate) -> BuildReport:
        """No lease, no device. Raises HarnessError if a compiler is needed and missing."""
        if (found := _violation(candidate)) is not None:
            return BuildReport(candidate=candidate.hash, verdict=Verdict.policy, summary=found)
        self._top_up()
        if candidate.hash not in self._reports:
            if any(name in candidate.source for name in _COMPILED):
                # Asked here, because a rank that says so cannot be believed: a missing compiler is not its fault.
                self._processes.platform.compile_command(Path("source"), Path("output"), [])
                _check_space(cache.root(), make=True)
                _check_space(self._processes.scratch, make=False)
            running = self._running.pop(candidate.hash, None)
            if running is not None and not running.ranks.alive:
                running = None  # ended with the session's processes, after a fault of ours
            report = _finish(self._processes, candidate, running or _begin(self._processes, candidate))
            if report.verdict is Verdict.timeout:
                return report  # may have been the machine's fault: not remembered
            self._reports[candidate.hash] = report
        return self._reports[candidate.hash]


def _violation(candidate: Candidate) -> str | None:
    return policy.violation(candidate.source, policy.allowed())


def _check_space(folder: Path, *, make: bool) -> None:
    """Raises HarnessError if nothing can be written where builds go: that too is not the candidate's fault."""
    try:
        if make:
            folder.mkdir(parents=True, exist_ok=True)
        elif not folder.is_dir():
            return  # a candidate has removed it: noticed, and made good, where processes start
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(1 << 20))
    except OSError as error:
        raise HarnessError(f"cannot write to the build cache {folder}: {error.strerror}") from None


def write_candidate(folder: Path, candidate: Candidate) -> Path:
    """`candidate.py` in a folder of its own: its name in every stack and compiler message."""
    path = folder / "candidate.py"
    path.write_text(candidate.source, encoding="utf-8")
    return path


def load_deadline(limits: Limits) -> Callable[[Phase], float]:
    """Seconds without progress while a candidate is imported: compiling gets the build's."""
    return lambda phase: limits.build_s if phase is Phase.building else limits.load_s


def _begin(processes: Processes, candidate: Candidate) -> _Running:
    since = time.monotonic()
    ranks = processes.spawn("build", 1)
    try:
        store.stock(ranks.scratch / "cache", candidate.hash)
        path = write_candidate(ranks.scratch, candidate)
        ranks.begin("build", {"path": str(path)})
    except HarnessError:
        ranks.kill()
        raise
    return _Running(ranks, since)


def _finish(processes: Processes, candidate: Candidate, running: _Running) -> BuildReport:
    ranks = running.ranks
    try:
        outcome = ranks.wait(load_deadline(processes.limits))
        seconds = time.monotonic() - running.since
        if outcome.ok:
            reply = outcome.replies[0]
            # The process has run the candidate's code: it may say anything.
            names, failure = reply.get("built"), reply.get("failure")
            built = tuple(one_line(name, 200) for name in names[:_MAX_BUILT]) if isinstance(names, list) else ()
            if failure is None:
                store.harvest(ranks.scratch / "cache", candidate.hash)
                return BuildReport(
                    candidate=candidate.hash, verdict=None, summary="built", built=built, build_s=seconds
                )
            outcome.ranks[0].error = checked_error(failure)
            outcome.ranks[0].reply = None
        elif outcome.ranks[0].exit:
            # The import ended its process. The load stage will see the same where it counts.
            return BuildReport(candidate=candidate.hash, verdict=None, summary="not built ahead", build_s=seconds)
        else:
            built = ()
        verdict, summary, reports = diagnosis.judge_failure(outcome, Stage.build, [ranks.log(0)])
        error = outcome.ranks[0].error
        log = error["message"] if error and "BuildError" in error["bases"] else reports[0].stack
        summary = summary.removeprefix("rank 0: ")
        return BuildReport(
            candidate=candidate.hash,
            verdict=verdict,
            summary=summary,
            log=log,
            findings=causes.explain(verdict, summary, log, reports, candidate.source),
            built=built,
            build_s=seconds,
        )
    finally:
        ranks.kill()
