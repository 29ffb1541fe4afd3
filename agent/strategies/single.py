"""One shot: the model writes one candidate, which is graded. What models do without feedback."""

from __future__ import annotations

from agent.conversation import Conversation
from agent.strategies.base import Step, Stop, Strategy
from runs.fold import Folding


class Single(Strategy):
    tools = frozenset({"write_candidate"})
    grades_untested = True

    def next(self, state: Folding, talk: Conversation) -> Step | None:
        return Stop("submitted") if talk.current is not None else None
