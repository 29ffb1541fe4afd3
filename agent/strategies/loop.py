"""All tools and no guidance: the model goes on until it submits or its budget ends. ParallelKernelBench's agentic
setting, and what recorded runs before strategies were."""

from __future__ import annotations

from agent.conversation import Conversation
from agent.strategies.base import Say, Stop
from runs.fold import Folding


class Loop:
    tools: frozenset[str] | None = None
    grades_untested = False

    def next(self, state: Folding, talk: Conversation) -> Say | Stop | None:
        return None
