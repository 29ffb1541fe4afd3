"""What a strategy is: answers from a run's state alone, so that a run which is resumed is led on in the same way."""

from __future__ import annotations

from dataclasses import dataclass

from agent.conversation import Conversation
from runs.events import Budget
from runs.fold import Folding


@dataclass(frozen=True)
class Say:
    """Something to be said to the model before it is asked again."""

    topic: str
    """What it is about; a strategy asks `Lane.attempt_when_said` for it."""
    text: str


@dataclass(frozen=True)
class Restart(Say):
    """The same, and the conversation begins anew with it and a summary of the lane."""


@dataclass(frozen=True)
class Begin(Say):
    """A new lane, which knows nothing of those before: the bare conversation and this text, if there is any."""

    candidate: str | None = None
    """Hash of an earlier candidate to go on from; the text then has its source, figures, and what was tried from it."""


@dataclass(frozen=True)
class Judge:
    """One request of its own about the best candidate (`agent.judge`); its answer becomes `Conversation.judgement`."""


@dataclass(frozen=True)
class Stop:
    """The run ends; its best candidate is graded."""

    reason: str


Step = Say | Judge | Stop
"""What is to be done before the model is asked."""


class Strategy:
    """Adds nothing by itself: all tools, no guidance, one lane."""

    tools: frozenset[str] | None = None
    """Those that the model may call; None for all."""
    grades_untested = False
    """Whether a candidate that was never evaluated is graded at the end, if there is no better."""

    def check(self, budget: Budget) -> None:
        """Raises UsageError for a budget that it cannot be led with."""

    def stated(self, budget: Budget) -> Budget:
        """The limits that the task names to the model."""
        return budget

    def share(self, state: Folding) -> Budget:
        """The limits up to which the present lane may go on, counted from the run's beginning."""
        return state.config.budget

    def next(self, state: Folding, talk: Conversation) -> Step | None:
        """Asked until it has nothing (None) to be done; then the model is asked."""
        return None

    def ended(self, state: Folding) -> Begin | None:
        """After the model itself ended its lane, by submit or by replies without a call; None ends the run."""
        return None
