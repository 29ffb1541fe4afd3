"""Counts what a run uses against its limits."""

from __future__ import annotations

from collections.abc import Callable

from runs.events import Budget, Spend
from runs.messages import Turn
from runs.spend import add_device, add_turn, at_wall

DIMENSIONS = ("steps", "tokens", "usd", "wall_s", "device_s")
TOOL_DIMENSIONS = ("wall_s", "device_s")
"""What a tool call uses. A reply that used up steps, tokens or USD is paid for, so its calls are still worth making."""


class Meter:
    """Starts the clock when it is made. `clock` gives seconds."""

    def __init__(self, budget: Budget, clock: Callable[[], float], spent: Spend | None = None) -> None:
        """`spent`: what a run that is resumed has used before."""
        self._budget = budget
        self._clock = clock
        self._spend = spent or Spend()
        self._started = clock() - self._spend.wall_s - self._spend.waited_s

    def add_turn(self, turn: Turn) -> None:
        self._spend = add_turn(self._spend, turn)

    def add_device(self, device_s: float) -> None:
        """Seconds x devices under lease."""
        self._spend = add_device(self._spend, device_s)

    @property
    def spend(self) -> Spend:
        """With the working time until now."""
        return at_wall(self._spend, self._clock() - self._started)

    def over(self, dimensions: tuple[str, ...] = DIMENSIONS) -> str | None:
        """The first exhausted dimension, or None. A USD limit is exhausted too when a reply came without its price."""
        return exceeded(self._budget, self.spend, dimensions)

    def remaining(self, share: Budget | None = None, before: Spend | None = None) -> str:
        """One line for the model: what is left of every limit that there is. `share`: of a lane's limits instead,
        `before` what had been used when it began."""
        spend, budget, before = self.spend, share or self._budget, before or Spend()
        parts = []
        for dimension in DIMENSIONS:
            limit = getattr(budget, dimension)
            if limit is not None:
                left = max(0, limit - getattr(spend, dimension))
                parts.append(_LEFT[dimension].format(left=left, limit=limit - getattr(before, dimension)))
        return f"Budget left: {', '.join(parts) or 'no limit'}."


def exceeded(budget: Budget, spend: Spend, dimensions: tuple[str, ...] = DIMENSIONS) -> str | None:
    """As `Meter.over`."""
    for dimension in dimensions:
        limit = getattr(budget, dimension)
        if limit is not None and getattr(spend, dimension) >= limit:
            return dimension
        if dimension == "usd" and limit is not None and not spend.usd_known:
            return dimension
    return None


_LEFT = {
    "steps": "{left} of {limit} replies",
    "tokens": "{left} of {limit} tokens",
    "usd": "{left:.2f} of {limit:.2f} USD",
    "wall_s": "{left:.0f} of {limit:.0f} s wall time",
    "device_s": "{left:.0f} of {limit:.0f} device-seconds",
}
