"""First correct, then fast. Says when to go over; on a plateau asks for another mechanism, on the next one has a judge
look at the best candidate and begins anew from it with the answer and a summary of what was measured."""

from __future__ import annotations

from agent.advice import advice
from agent.conversation import Conversation
from agent.strategies.base import Judge, Restart, Say, Step, Strategy
from agent.strategies.measured import moved_by, others, page, speedup, without_gain
from runs.fold import Folding

PLATEAU = 5
"""Measured revisions in a row without gain."""
STRUGGLE = 6
"""Evaluated attempts in a row before any is correct."""
WORTH_JUDGING = 3
"""Replies that must be left: the judge's own, and two that act on it."""


class Phased(Strategy):
    def next(self, state: Folding, talk: Conversation) -> Step | None:
        lane, best = state.lane, state.lane.best
        if best is None:
            evaluated = sum(attempt.verdict is not None for attempt in lane.attempts)
            struggling = evaluated - lane.evaluated_when_said("simplify") >= STRUGGLE
            return Say("simplify", advice("simplify", attempts=evaluated)) if struggling else None
        facts = {"attempt": best.number, "speedup": speedup(best)}
        if lane.attempt_when_said("fast") is None:
            return Say("fast", advice("fast", **facts))
        plateau, restart = (lane.attempt_when_said(topic) or 0 for topic in ("plateau", "restart"))
        measured = without_gain(lane.attempts, best, max(best.number, plateau, restart))
        if measured < PLATEAU:
            return None
        if lane.last_topic == "plateau" and best.number <= plateau:
            if talk.judgement is None and self._worth_judging(state):
                return Judge()
            judged = talk.judgement.text.strip() if talk.judgement else ""
            return Restart("restart", advice("restart", judged=judged, **facts))
        facts |= {"measured": measured, "mechanisms": moved_by(best)}
        text = advice("plateau", others=others(state.config, best), page=page(state.config), **facts)
        return Say("plateau", text)

    def _worth_judging(self, state: Folding) -> bool:
        steps = self.share(state).steps
        return steps is None or steps - state.spend.steps >= WORTH_JUDGING
