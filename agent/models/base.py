"""What the loop needs of a language model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from agent.models.bounds import Bounds
from harness.errors import BudgetEndedError, RingsmithError, UsageError
from runs.messages import Message, Turn, Usage

OnText = Callable[[str, bool], None]
"""Gets a reply piece by piece while it is written; True: a piece of its reasoning. A repeated request begins again."""


class ModelError(RingsmithError):
    """The provider failed for good: refused, or still failing after every retry. One line, never with a key in it."""


class ContextOverflowError(ModelError):
    """The conversation is longer than the model's context. A shorter one may succeed, the same one never will."""

    def __init__(self, message: str, cut: Turn | None = None) -> None:
        """`cut`: the reply that filled the context and is paid for, if there was one."""
        super().__init__(message)
        self.cut = cut


class ReplyCutError(BudgetEndedError):
    """A limit was reached while the reply was being written; the request has been given up. What it has used so far is
    paid for."""

    def __init__(self, limit: str, usage: Usage, waited_s: float) -> None:
        super().__init__(limit)
        self.usage, self.waited_s = usage, waited_s


def require_price(model: Model, *limits_usd: float | None) -> None:
    """Raises UsageError if there is a limit in USD and the price is unknown: it could not be kept."""
    if any(limit is not None for limit in limits_usd) and not model.priced():
        raise UsageError(
            f"the price of {model.name} is unknown, so a limit in USD cannot be kept: limit tokens or steps"
        )


class Model(Protocol):
    name: str

    def priced(self) -> bool:
        """Whether every reply will carry its cost, so that a limit in USD can be kept."""
        ...

    def cost_usd(self, usage: Usage) -> float | None:
        """What a reply of this usage costs; None if the price is unknown."""
        ...

    def reply(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]], bounds: Bounds | None = None) -> Turn:
        """One reply to the conversation. `tools` are schemas: name, description, parameters. Raises ModelError, and
        ReplyCutError when what `bounds` allows is over."""
        ...
