"""What a run tried, and the one rule for which attempt is the best."""

from __future__ import annotations

from collections.abc import Sequence

from harness.types import Evaluation, Frozen, Measurement, Mechanism, Ratio, Verdict
from runs.events import Target


class Attempt(Frozen):
    """A tool call that evaluated a candidate or changed its text."""

    number: int
    """Of the candidate's text, from 1 in each lane; calls on the same text share it."""
    step: int
    candidate: str
    """Hash of the candidate."""
    tool: str
    verdict: Verdict | None
    """None if the call did not evaluate."""
    summary: str
    """The verdict's reason in one line."""
    measurement: Measurement | None
    mechanisms: tuple[Mechanism, ...] = ()
    lane: int = 1
    said: str = ""
    """First words of the reply that made the call."""

    @property
    def eager(self) -> Ratio | None:
        return self.measurement.eager.speedup if self.measurement else None

    @property
    def device(self) -> Ratio | None:
        return self.measurement.device.speedup if self.measurement and self.measurement.device else None


class Leader:
    """The best of those that passed; the earlier of equals.

    A candidate that also failed once is out: one that is right only sometimes (a race) is wrong.
    """

    def __init__(self) -> None:
        self._failed: set[str] = set()
        self._passed: list[Attempt] = []
        self.best: Attempt | None = None

    def add(self, attempt: Attempt) -> None:
        if attempt.verdict is None:
            return
        if attempt.verdict is not Verdict.passed:
            self._failed.add(attempt.candidate)
            if self.best is not None and self.best.candidate == attempt.candidate:
                self.best = None
                for other in self._passed:
                    self._consider(other)
            return
        self._passed.append(attempt)
        self._consider(attempt)

    def _consider(self, attempt: Attempt) -> None:
        if attempt.candidate in self._failed:
            return
        if self.best is None or _better(attempt.measurement, self.best.measurement):
            self.best = attempt


def best(attempts: Sequence[Attempt]) -> Attempt | None:
    """See `Leader`."""
    leader = Leader()
    for attempt in attempts:
        leader.add(attempt)
    return leader.best


def _better(new: Measurement | None, old: Measurement | None) -> bool:
    """By the lower bound of the speed-up, so that noise alone does not make a leader; a figure beats none."""
    if new is None or old is None:
        return old is None and new is not None
    if new.device and old.device:
        return new.device.speedup.low > old.device.speedup.low
    return new.eager.speedup.low > old.eager.speedup.low


def headline(measurement: Measurement) -> Ratio:
    """The speed-up that counts against a target: the device's if it could be had, else the eager one."""
    return (measurement.device or measurement.eager).speedup


def meets(measurement: Measurement | None, speedup: float) -> bool:
    """Whether a measured speed-up is above `speedup` beyond noise."""
    return measurement is not None and headline(measurement).low > speedup


def target_met(official: Evaluation | None, target: Target) -> bool:
    """The official evaluation's word on the target; without a speed-up to reach, being correct is the target."""
    if official is None or not official.passed:
        return False
    return target.speedup is None or meets(official.measurement, target.speedup)
