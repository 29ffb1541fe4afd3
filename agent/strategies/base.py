"""What a strategy is: answers from a run's state alone, so that a run which is resumed is led on in the same way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from agent.conversation import Conversation
from runs.fold import Folding


@dataclass(frozen=True)
class Say:
    """Something to be said to the model before it is asked again."""

    topic: str
    """What it is about; a strategy asks `Conversation.said` for it."""
    text: str


@dataclass(frozen=True)
class Restart(Say):
    """The same, and the conversation begins anew with it and a summary of the record."""


@dataclass(frozen=True)
class Stop:
    """The run ends; its best candidate is graded."""

    reason: str


class Strategy(Protocol):
    tools: frozenset[str] | None
    """Those that the model may call; None for all."""
    grades_untested: bool
    """Whether a candidate that was never evaluated is graded at the end, if there is no better."""

    def next(self, state: Folding, talk: Conversation) -> Say | Stop | None:
        """Before the model is asked; None: just ask."""
        ...
