"""One shot: the model writes one candidate, which is graded. What models do without feedback."""

from __future__ import annotations

from agent.conversation import Conversation
from agent.strategies.base import Say, Stop
from runs.fold import Folding


class Single:
    tools: frozenset[str] | None = frozenset({"write_candidate"})
    grades_untested = True

    def next(self, state: Folding, talk: Conversation) -> Say | Stop | None:
        return Stop("submitted") if talk.current is not None else None
