"""Work that is done where no clock counts it: in samples whose outputs are copied, which do not count, or before a
sample begins. What the reference takes there, a candidate may take as well. Imports no torch.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Literal

from harness.measure import median
from harness.pair import FailedError
from harness.platforms import Plan, Unclocked
from harness.types import Verdict

Side = Literal["reference", "candidate"]
_FEW = 5
"""Samples of a kind, or fewer blocks than three, that nothing follows from."""
_COPYING_FACTOR, _DEVICE_FACTOR = 3.0, 2.0
"""How many times as long as the copy of the reference's output may that of a candidate's take; and by the device alone,
where every output is copied."""


@dataclass(frozen=True)
class Copying:
    """What copying each call's output may take."""

    us: float
    """By the device's clock, of each call."""
    host_us: float
    """What the host needs to issue it."""


@dataclass
class _Samples:
    """Of one side, with one number of calls in a sample; in microseconds of whole samples."""

    copied: list[float] = field(default_factory=list)
    """Those of which any rank has copied an output."""
    others: list[float] = field(default_factory=list)
    copied_host: list[float] = field(default_factory=list)
    others_host: list[float] = field(default_factory=list)
    """What the slowest host needed to issue them, where that is known."""
    blocks: list[tuple[float, float]] = field(default_factory=list)
    """Of each block, per sample: its time by the supervisor's clock besides what the ranks claim for calls, and what
    they claim where no output is copied."""
    lead: list[float] = field(default_factory=list)
    """From the change of a sample's inputs to its clock's start, on the rank with the least: the others may have waited
    for it."""

    @property
    def between_us(self) -> float:
        """What passes from one sample to the next."""
        return median([between_us for between_us, _ in self.blocks])

    @property
    def least_between_us(self) -> float:
        """How much longer than what counts as the calls' time every block is, per sample: the work, before the clock
        runs or, in some blocks, while it does, is in all of them."""
        return min(map(sum, self.blocks)) - median(self.others or self.copied)

    @property
    def copying_us(self) -> float:
        """The same of every sample of which an output is copied: work that was put off is in all of them."""
        return _longer(self.copied, self.others)

    @property
    def copying_host_us(self) -> float:
        """The same of the host; 0 where that is not known."""
        known = self.copied_host and self.others_host
        return _longer(self.copied_host, self.others_host) if known else 0.0


def _longer(copied: list[float], others: list[float]) -> float:
    return min(copied) - median(others)


class Elsewhere:
    """Of one pair's timed blocks."""

    def __init__(self, allowed: Unclocked) -> None:
        self._allowed = allowed
        self.output_bytes = 0
        """Of one call, on the rank that returns most."""
        self.taking_us: list[float] = []
        """What a rank's host needed for a copy of one of the reference's outputs, in each block."""
        self._seen: dict[tuple[str, int, Side], _Samples] = defaultdict(_Samples)

    def add(
        self, side: Side, mode: str, plan: Plan,
        times: list[list[float]], host: list[list[float]], copied: list[set[int]], lead: list[list[float]],
        wall_us: float,
    ) -> None:  # fmt: skip
        """A block: `times[rank][sample]` and `host` of one call, `lead` before the sample; of each rank the samples
        whose output it copied."""
        if plan.turns > 1 or plan.audit_chance == 0:
            return
        seen, those = self._seen[mode, plan.calls, side], set().union(*copied)
        samples = [plan.calls * max(sample) for sample in zip(*times, strict=True)]
        for number, us in enumerate(samples):
            (seen.copied if number in those else seen.others).append(us)
        if all(host):
            for number, sample in enumerate(zip(*host, strict=True)):
                (seen.copied_host if number in those else seen.others_host).append(plan.calls * max(sample))
        plain = [us for number, us in enumerate(samples) if number not in those] or samples
        seen.blocks.append(((wall_us - sum(samples)) / plan.samples, sum(plain) / len(plain)))
        seen.lead += [min(sample) for sample in zip(*lead, strict=True)]

    def copying(self, mode: str, calls: int) -> Copying:
        """What may be added to each call whose output is copied. Calls that wait for the host, as those that cannot be
        made without launches do, take longer by what that needs for it."""
        theirs = self._seen.get((mode, calls, "reference"))
        known = theirs is not None and theirs.copied and theirs.others
        # Nobody doubts the reference's: not the least of its samples, which noise makes less than nothing.
        device_us = max(0.0, median(theirs.copied) - median(theirs.others)) if theirs and known else 0.0
        host_us = median(self.taking_us) if self.taking_us else 0.0
        waiting_us = _COPYING_FACTOR * host_us if mode == "eager" else 0.0
        more_us = self._allowed.each_copy_us + self._allowed.each_copy_us_per_mib * self.output_bytes / 2**20
        return Copying(max(_DEVICE_FACTOR * device_us, waiting_us) + more_us, host_us)

    def judge(self) -> None:
        for (mode, calls, side), ours in list(self._seen.items()):
            theirs = self._seen.get((mode, calls, "reference"))
            if side == "reference" or theirs is None or min(len(ours.blocks), len(theirs.blocks)) < 3:
                continue
            self._judge_before(ours, theirs)
            if min(map(len, (ours.copied, ours.others, theirs.copied, theirs.others))) >= _FEW:
                self._judge_copies(ours, theirs)

    def _judge_before(self, ours: _Samples, theirs: _Samples) -> None:
        allowed, sample = self._allowed, median(theirs.others or theirs.copied)
        known, lead, known_lead = theirs.between_us, median(ours.lead), median(theirs.lead)
        most = allowed.before_factor * known + allowed.between_share * sample + allowed.between_us
        for between, factor in [(ours.least_between_us, 1.0), (ours.between_us, allowed.most_blocks_factor)]:
            if between > factor * most:
                raise FailedError(
                    Verdict.integrity,
                    f"{between:.0f} us pass from one timed sample to the next by the supervisor's clock, with the "
                    f"reference {known:.0f} us: work is done before the ranks' clocks run, or these run slow",
                )
        if lead > allowed.before_factor * known_lead + allowed.lead_us:
            raise FailedError(
                Verdict.integrity,
                f"{lead:.0f} us pass from the change of a timed sample's inputs to the clock's start, with the "
                f"reference {known_lead:.0f} us: work is done before the clock runs",
            )

    def _judge_copies(self, ours: _Samples, theirs: _Samples) -> None:
        allowed, plain, more = self._allowed, median(ours.others), ours.copying_us
        known = max(0.0, theirs.copying_us, theirs.copying_host_us)
        copying_us = allowed.copying_us + allowed.copying_us_per_mib * self.output_bytes / 2**20
        if more > allowed.copying_share * plain + _COPYING_FACTOR * known + copying_us:
            raise FailedError(
                Verdict.integrity,
                f"timed calls take {plain:.0f} us a sample, and {more:.0f} us more where the harness copies an output "
                f"(the reference's {known:.0f} us more): the work is done when somebody looks",
            )
