"""How a run is led, by name, one file each: before every step the loop asks its strategy what is to be said or done."""

from __future__ import annotations

from agent.strategies.base import Strategy
from agent.strategies.loop import Loop
from agent.strategies.phased import Phased
from agent.strategies.single import Single
from harness.errors import UsageError

STRATEGIES: dict[str, type[Strategy]] = {"single": Single, "loop": Loop, "phased": Phased}


def make(name: str) -> Strategy:
    """Raises UsageError."""
    if name not in STRATEGIES:
        raise UsageError(f"no strategy {name!r}; there are {', '.join(STRATEGIES)}")
    return STRATEGIES[name]()
