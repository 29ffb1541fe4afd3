"""What the loop needs of a language model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from harness.errors import RingsmithError
from runs.messages import Message, Turn

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


class Model(Protocol):
    name: str

    def priced(self) -> bool:
        """Whether every reply will carry its cost, so that a limit in USD can be kept."""
        ...

    def reply(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Turn:
        """One reply to the conversation. `tools` are schemas: name, description, parameters. Raises ModelError."""
        ...
