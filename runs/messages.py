"""The conversation with a model, free of any provider's format."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import Field

from harness.types import Frozen


class ToolCall(Frozen):
    """A call as the model made it. `arguments` is its raw JSON text: it may be malformed."""

    id: str
    name: str
    arguments: str


class Usage(Frozen):
    """Tokens of one reply. `input_tokens` counts everything sent, cached or not; `output_tokens` includes reasoning."""

    input_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


class Turn(Frozen):
    """One reply of a model."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    cost_usd: float | None = None
    """None if the price is unknown."""
    waited_s: float = 0.0
    """Seconds between attempts, for rate limits and failures of the provider: no work, so a budget leaves them out."""
    stop: str = ""
    """The provider's own word for why it stopped."""
    opaque: dict[str, Any] = Field(default_factory=dict)
    """What the provider wants sent back unread with this reply (thought signatures, thinking blocks)."""
    raw: dict[str, Any] | None = None
    """The provider's response as received, keys and secrets never included."""
    request: dict[str, Any] | None = Field(default=None, repr=False, exclude=True)
    """The body of the request as sent. Never written with the turn: the record has it as `runs.events.Sent`."""


class Message(Frozen):
    """One entry of the conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    """Of an assistant message."""
    opaque: dict[str, Any] = Field(default_factory=dict)
    """Of an assistant message: as in `Turn`."""
    call_id: str = ""
    """Of a tool message: the call that it answers."""
    tool: str = ""


def told_call(call: ToolCall, result: str) -> Message:
    """Somebody else's call, as a model is told it that is asked in between. Not as a call of its own: providers want
    what came with a call to be sent back with it."""
    return Message(
        role="user",
        text=f"Whoever leads this run has called {call.name}. It returned:\n\n{result}{_arguments(call)}",
    )


def _arguments(call: ToolCall) -> str:
    """What a call was made with, line breaks as such; empty without arguments."""
    try:
        given = json.loads(call.arguments or "{}")
    except ValueError:
        given = call.arguments
    if not isinstance(given, dict):
        return f"\n\nIts arguments: {call.arguments}"
    return "".join(f"\n\nIts argument {name}:\n\n{_block(value)}" for name, value in given.items())


def _block(value: object) -> str:
    return f"```\n{value}\n```" if isinstance(value, str) and "\n" in value else str(value)
