"""Independent lanes, one after the other, each as `phased` leads a run: each begins from the bare conversation and
knows nothing of the others. Every limit is divided evenly; what a lane leaves goes to the next. The best is graded."""

from __future__ import annotations

from typing import Any

from agent.budget import DIMENSIONS, exceeded
from agent.conversation import Conversation
from agent.strategies.base import Begin, Step
from agent.strategies.phased import Phased
from harness.errors import UsageError
from runs.events import Budget
from runs.fold import Folding


class Lanes(Phased):
    def __init__(self, count: int = 3) -> None:
        self.count = count

    def check(self, budget: Budget) -> None:
        if budget.steps is not None and budget.steps < self.count:
            raise UsageError(f"{self.count} lanes need at least {self.count} steps, one each; there are {budget.steps}")

    def stated(self, budget: Budget) -> Budget:
        return _part(budget, 1, self.count)

    def share(self, state: Folding) -> Budget:
        return _part(state.config.budget, state.lane.number, self.count)

    def next(self, state: Folding, talk: Conversation) -> Step | None:
        if exceeded(self.share(state), state.spend) and (lane := self.ended(state)):
            return lane
        return super().next(state, talk)

    def ended(self, state: Folding) -> Begin | None:
        return Begin("lane", "") if state.lane.number < self.count else None


def _part(budget: Budget, lanes: int, count: int) -> Budget:
    """What the first `lanes` of `count` may use."""
    limits: dict[str, Any] = {name: getattr(budget, name) for name in DIMENSIONS}
    return budget.model_copy(
        update={
            name: limit * lanes // count if isinstance(limit, int) else limit * lanes / count
            for name, limit in limits.items()
            if limit is not None
        }
    )
