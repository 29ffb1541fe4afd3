"""What strategies read off the attempts of a lane."""

from __future__ import annotations

from collections.abc import Sequence

from harness.types import MECHANISMS, Mechanism, Verdict
from harness.wording import figure
from runs.attempts import Attempt, headline
from runs.events import RunConfig
from tools.pages import pages

_COLLECTIVES = {"NCCL", "gloo"}


def without_gain(attempts: Sequence[Attempt], best: Attempt, after: int) -> int:
    """Other texts than the best that were measured after an attempt."""
    later = [a for a in attempts if a.number > after and a.verdict is Verdict.passed]
    return len({attempt.candidate for attempt in later} - {best.candidate})


def speedup(attempt: Attempt) -> str:
    return f"{figure(headline(attempt.measurement).value)}x the reference" if attempt.measurement else "not timed"


def moved_by(attempt: Attempt) -> str:
    return ", ".join(attempt.mechanisms) or "means that could not be told"


def mechanisms(config: RunConfig) -> list[Mechanism]:
    """Those that a candidate of this run may use, the baseline's own last."""
    there = MECHANISMS[config.platform]
    return [m for m in there if m not in _COLLECTIVES or config.collectives == "allow"]


def others(config: RunConfig, best: Attempt) -> list[Mechanism]:
    """Those worth asking for that it does not use; the baseline's own is not."""
    return [m for m in mechanisms(config) if m not in {*best.mechanisms, *_COLLECTIVES}]


def page(config: RunConfig) -> bool:
    """Whether a model of this run can read the page on mechanisms."""
    return "mechanisms" in pages(config.backend)
