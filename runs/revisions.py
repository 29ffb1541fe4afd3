"""A run's candidates with all that was done with each: what the pages of a run list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.diagnosis import name_ranks
from harness.profile_types import Profile
from harness.types import BuildReport, Evaluation, Measurement, RankReport, Ratio, Verdict
from runs.attempts import Attempt, best, headline


@dataclass
class Revision:
    """A candidate's text as one lane counts them (`Attempt.number`), and all that was done with it."""

    lane: int
    number: int
    candidate: str
    at_s: float
    """When it was first there, since the run began."""
    attempts: list[Attempt] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    build: BuildReport | None = None
    """Of a `compile` call; the last one."""
    profile: Profile | None = None
    """The last one."""

    @property
    def key(self) -> str:
        """Names it in its run: `7`, or `2.7` in lane 2."""
        return f"{self.lane}.{self.number}" if self.lane > 1 else str(self.number)

    @property
    def step(self) -> int:
        return self.attempts[0].step

    @property
    def tool(self) -> str:
        """What made it, or `person`."""
        return self.attempts[0].tool

    @property
    def said(self) -> str:
        return self.attempts[0].said

    @property
    def failed(self) -> Evaluation | BuildReport | None:
        """The last evaluation that it failed: one that is right only sometimes is wrong. Or the build, if it came no
        further."""
        if failed := next((one for one in reversed(self.evaluations) if not one.passed), None):
            return failed
        return self.build if self.build and self.build.verdict and not self.evaluations else None

    @property
    def verdict(self) -> Verdict | None:
        """None if it was neither evaluated nor refused by a compiler."""
        if self.failed is not None:
            return self.failed.verdict
        return Verdict.passed if self.evaluations else None

    @property
    def summary(self) -> str:
        return self.failed.summary if self.failed is not None else ""

    @property
    def measurement(self) -> Measurement | None:
        """Of its best evaluation."""
        leader = best(self.attempts)
        return leader.measurement if leader else None

    @property
    def speedup(self) -> Ratio | None:
        """What counts against a target."""
        return headline(self.measurement) if self.measurement else None


def alike(ranks: Iterable[RankReport]) -> list[tuple[str, RankReport]]:
    """What ranks say, once for all that say the same: their names and the report of the first."""
    groups: dict[Any, list[RankReport]] = {}
    all_of = list(ranks)
    for report in all_of:
        same = (report.ok, report.stage, report.message, report.line, report.exit, report.stack, report.stderr)
        groups.setdefault(same, []).append(report)
    return [(name_ranks([one.rank for one in group], len(all_of)), group[0]) for group in groups.values()]


def counted(names: Sequence[str]) -> str:
    """`4x NVIDIA H200`."""
    return ", ".join(f"{n}x {name}" if n > 1 else name for name, n in Counter(names).items())
