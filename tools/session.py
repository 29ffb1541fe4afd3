"""What the tools of one run act on: the current candidate, its evaluations, and the sandbox."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.sandboxes import SandboxLike
from harness.types import (
    Backend,
    BuildReport,
    Candidate,
    Check,
    CollectivesRule,
    DType,
    Evaluation,
    Finding,
    Limits,
    Protocol,
    Request,
)
from problems.catalogue import Entry, select_case
from problems.spec import Case
from tools.base import ToolError


@dataclass
class Attempt:
    """One text of the candidate and what is known of it."""

    number: int
    candidate: Candidate
    build: BuildReport | None = None
    evaluation: Evaluation | None = None
    """At the run's own case: the one that counts."""
    latest: Evaluation | None = None
    """The last one at whatever case, for inspect_failure."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Why it failed last; empty if it did not, or nobody knows why."""
        if self.latest is not None:
            return self.latest.findings
        return self.build.findings if self.build is not None else ()


class Session:
    def __init__(
        self,
        *,
        sandbox: SandboxLike,
        entry: Entry,
        case: Case,
        dtype: DType,
        backend: Backend,
        protocol: Protocol,
        collectives: CollectivesRule = "allow",
        check: Check,
        trials: int,
        traces_dir: Path,
        limits: Limits | None = None,
    ) -> None:
        self.sandbox, self.entry, self.case, self.dtype = sandbox, entry, case, dtype
        self.backend, self.protocol, self.check, self.trials = backend, protocol, check, trials
        self.collectives, self.traces_dir = collectives, traces_dir
        self.limits = limits or sandbox.limits
        self.attempts: list[Attempt] = []
        """Of the lane that goes on."""
        self._earlier: dict[str, Attempt] = {}
        """The last of each candidate in the lanes before, by hash; no tool shows them."""
        self._passed: set[str] = set()
        self._failed: set[str] = set()

    @property
    def current(self) -> Attempt:
        """The latest attempt. Raises ToolError if nothing has been written."""
        if not self.attempts:
            raise ToolError("There is no candidate yet: call write_candidate first.")
        return self.attempts[-1]

    def write(self, source: str) -> Attempt:
        """A new attempt; the same text as the current one is not a new attempt."""
        candidate = Candidate(source=source, backend=self.backend)
        if not self.attempts or self.attempts[-1].candidate != candidate:
            self.attempts.append(Attempt(len(self.attempts) + 1, candidate))
        return self.attempts[-1]

    def begin_lane(self, candidate: Candidate | None) -> None:
        """Forget what was tried, all but `candidate`, with which the lane goes on: it is attempt 1."""
        self._earlier.update((attempt.candidate.hash, attempt) for attempt in self.attempts)
        self.attempts, self._passed, self._failed = [], set(), set()
        if candidate is None:
            return
        attempt, known = self.write(candidate.source), self._earlier.get(candidate.hash)
        if known is not None:
            attempt.build, attempt.evaluation, attempt.latest = known.build, known.evaluation, known.latest
            if known.evaluation is not None:
                self.note(known.evaluation)

    def before(self, attempt: Attempt, findings: Sequence[Finding]) -> int | None:
        """Number of the last attempt before this one that failed of the same error, wherever in its text."""
        error = _without_lines(findings)
        earlier = [a for a in self.attempts if a.number < attempt.number and a.findings]
        return next((a.number for a in reversed(earlier) if findings and _without_lines(a.findings) == error), None)

    def restore(self, candidate: Candidate, build: BuildReport | None, evaluations: Sequence[Evaluation]) -> None:
        """What one tool call of an earlier process did: `candidate` was current then, `build` and `evaluations`
        (at whatever case) came of it."""
        attempt = self.write(candidate.source)
        attempt.build = build or attempt.build
        for evaluation in evaluations:
            attempt.latest = evaluation
            if evaluation.case == self.case.name:
                attempt.evaluation = evaluation
                self.note(evaluation)

    def request(self, candidate: Candidate, *, case: str | None = None, timing: bool = True) -> Request:
        """Raises ProblemError for a case that the problem does not have."""
        return Request(
            candidate=candidate,
            problem=self.entry.number,
            suite=self.entry.suite,
            case=select_case(self.entry, case).name if case else self.case.name,
            platform=self.sandbox.platform_name,
            world_size=self.sandbox.world_size,
            dtype=self.dtype,
            protocol=self.protocol,
            collectives=self.collectives,
            check=self.check,
            trials=self.trials,
            timing=timing,
            limits=self.limits,
        )

    def note(self, evaluation: Evaluation) -> None:
        """Remember the verdict of an evaluation at the run's own case."""
        (self._passed if evaluation.passed else self._failed).add(evaluation.candidate)

    def once_failed(self, candidate: Candidate) -> bool:
        """Whether this very text has failed: right only sometimes is wrong, so it cannot be the run's best."""
        return candidate.hash in self._failed

    @property
    def has_best(self) -> bool:
        """Whether some candidate has passed and never failed."""
        return bool(self._passed - self._failed)

    def official(self, candidate: Candidate) -> Evaluation:
        """The evaluation that counts and ends a run: its own case, fresh seeds, all stages. Raises HarnessError."""
        return self.sandbox.evaluate(self.request(candidate), last=True)


def _without_lines(findings: Sequence[Finding]) -> list[tuple[str, ...]]:
    """What they say, without line numbers: the same error may have moved."""
    lines = re.compile(r"(?<=[\w.]):\d+|\(\d+\)|\bline \d+")
    return [tuple(lines.sub("", said) for said in (f.cause, f.text, f.evidence)) for f in findings]
