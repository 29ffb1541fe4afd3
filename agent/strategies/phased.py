"""First correct, then fast. Says when to go over; on a plateau asks for another mechanism, on the next one begins anew
from the best with a summary of what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from agent.advice import advice
from agent.conversation import Conversation
from agent.strategies.base import Restart, Say, Stop
from harness.types import Mechanism, Verdict
from runs.attempts import Attempt, headline
from runs.fold import Folding

PLATEAU = 5
"""Measured revisions in a row without gain."""
STRUGGLE = 6
"""Evaluated attempts in a row before any is correct."""
_NOT_ASKED_FOR = {"NCCL", "NVLS", "gloo", "shared memory"}
"""What the baseline uses, what our hosts forbid, and what the cpu platform has."""


class Phased:
    tools: frozenset[str] | None = None
    grades_untested = False

    def next(self, state: Folding, talk: Conversation) -> Say | Stop | None:
        best = state.best
        if best is None:
            evaluated = sum(attempt.verdict is not None for attempt in state.attempts)
            struggling = evaluated - state.evaluated_when_said("simplify") >= STRUGGLE
            return Say("simplify", advice("simplify", attempts=evaluated)) if struggling else None
        facts = {"attempt": best.number, "speedup": _speedup(best)}
        if state.attempt_when_said("fast") is None:
            return Say("fast", advice("fast", **facts))
        plateau, restart = (state.attempt_when_said(topic) or 0 for topic in ("plateau", "restart"))
        measured = _without_gain(state.attempts, best, max(best.number, plateau, restart))
        if measured < PLATEAU:
            return None
        if state.last_topic == "plateau" and best.number <= plateau:
            return Restart("restart", advice("restart", **facts))
        others = [m for m in get_args(Mechanism) if m not in (*best.mechanisms, *_NOT_ASKED_FOR)]
        there = ", ".join(best.mechanisms) or "means that could not be told"
        text = advice("plateau", measured=measured, mechanisms=there, others=", ".join(others), **facts)
        return Say("plateau", text)


def _without_gain(attempts: Sequence[Attempt], best: Attempt, after: int) -> int:
    """Other texts than the best that were measured after an attempt."""
    later = [a for a in attempts if a.number > after and a.verdict is Verdict.passed]
    return len({attempt.candidate for attempt in later} - {best.candidate})


def _speedup(attempt: Attempt) -> str:
    return f"{headline(attempt.measurement).value:.2f}x the reference" if attempt.measurement else "not timed"
