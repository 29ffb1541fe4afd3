"""What a run tried, and the one rule for which attempt is the best."""

from __future__ import annotations

from collections.abc import Sequence

from harness.types import Evaluation, Frozen, Measurement, Mechanism, Ratio, Verdict
from runs.events import Target


class Attempt(Frozen):
    """A tool call that evaluated a candidate or changed its text."""

    number: int
    """From 1."""
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

    @property
    def eager(self) -> Ratio | None:
        return self.measurement.eager.speedup if self.measurement else None

    @property
    def device(self) -> Ratio | None:
        return self.measurement.device.speedup if self.measurement and self.measurement.device else None


def best(attempts: Sequence[Attempt]) -> Attempt | None:
    """The best of those that passed; the earlier of equals.

    A candidate that also failed once is out: one that is right only sometimes (a race) is wrong.
    """
    failed = {attempt.candidate for attempt in attempts if attempt.verdict not in (None, Verdict.passed)}
    leader: Attempt | None = None
    for attempt in attempts:
        if attempt.verdict is not Verdict.passed or attempt.candidate in failed:
            continue
        if leader is None or _better(attempt.measurement, leader.measurement):
            leader = attempt
    return leader


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
