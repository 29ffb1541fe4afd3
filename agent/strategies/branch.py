"""Seeds, then branches from the best: a few short lanes, each with another mechanism, then rounds that each begin with
a fresh context from an earlier candidate, its figures and what was tried from it. One attempt of a larger budget."""

from __future__ import annotations

from agent.advice import advice
from agent.conversation import Conversation
from agent.strategies.base import Begin, Say, Step, Strategy
from agent.strategies.measured import mechanisms, moved_by, page, speedup, without_gain
from harness.errors import UsageError
from harness.types import Verdict
from runs.attempts import Attempt, best
from runs.events import Budget
from runs.fold import Folding
from runs.lanes import Lane

SEED_STEPS = 8
"""Replies of one seed at most; all seeds together get half of the run's."""
DRY = 3
"""Measured revisions in a row without gain that end a branch; twice as many evaluated ones do too."""
SECOND_EVERY = 3
"""Of so many rounds one goes on from the second best, whose mechanism differs."""
IDLE = 3
"""Rounds in a row that the model gave up without gain: then the run ends."""


class Branch(Strategy):
    def __init__(self, count: int = 3) -> None:
        self.count = count

    def check(self, budget: Budget) -> None:
        if budget.steps is not None and budget.steps < 2 * self.count:
            raise UsageError(
                f"{self.count} seeds need at least {2 * self.count} steps, half of them for the rounds that follow; "
                f"there are {budget.steps}"
            )

    def share(self, state: Folding) -> Budget:
        budget, lane = state.config.budget, state.lane
        if lane.parent is not None:
            return budget
        most = lane.before.steps + self._seed_steps(budget)
        return budget.model_copy(update={"steps": most if budget.steps is None else min(most, budget.steps)})

    def next(self, state: Folding, talk: Conversation) -> Step | None:
        lane = state.lane
        if lane.parent is not None:
            return self._begin(state) if _dry(lane) else None
        if lane.number == 1 and lane.attempt_when_said("seed") is None:
            return Say("seed", self._seed(state, 1))
        used = state.spend.steps - lane.before.steps
        return self._begin(state) if used >= self._seed_steps(state.config.budget) else None

    def ended(self, state: Folding) -> Begin | None:
        last = state.lanes[-IDLE:]
        idle = all(lane.parent is not None and not _gained(lane) for lane in last)
        return None if idle and len(last) == IDLE else self._begin(state)

    def _begin(self, state: Folding) -> Begin:
        number = state.lane.number + 1
        if state.best is None or number <= self.count:
            return Begin("seed", self._seed(state, number))
        rounds = sum(lane.parent is not None for lane in state.lanes) + 1
        second = _otherwise(state, state.best) if rounds % SECOND_EVERY == 0 else None
        chosen = second or state.best
        text = advice(
            "branch",
            speedup=speedup(chosen),
            mechanisms=moved_by(chosen),
            best=moved_by(state.best) if second else "",
            best_speedup=speedup(state.best),
            dry=DRY,
        )
        return Begin("branch", text, chosen.candidate)

    def _seed(self, state: Folding, number: int) -> str:
        there = mechanisms(state.config)
        asked = there[(number - 1) % len(there)]
        return advice("seed", mechanism=asked, steps=self._seed_steps(state.config.budget), page=page(state.config))

    def _seed_steps(self, budget: Budget) -> int:
        return SEED_STEPS if budget.steps is None else min(SEED_STEPS, budget.steps // (2 * self.count))


def _otherwise(state: Folding, first: Attempt) -> Attempt | None:
    """The best of those that move their data otherwise. (Failures count for what they are: that text is out.)"""
    return best([a for a in state.attempts if a.verdict is not Verdict.passed or a.mechanisms != first.mechanisms])


def _dry(lane: Lane) -> bool:
    after = lane.best.number if lane.best else 0
    evaluated = {a.candidate for a in lane.attempts if a.number > after and a.verdict is not None}
    measured = without_gain(lane.attempts, lane.best, after) if lane.best else 0
    return measured >= DRY or len(evaluated) >= 2 * DRY


def _gained(lane: Lane) -> bool:
    """Whether something better than what the lane began with came of it."""
    return lane.best is not None and lane.best.candidate != lane.parent
