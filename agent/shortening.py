"""Old tool results cut to their first lines: all at once and seldom, since each cut loses what a provider cached."""

from __future__ import annotations

from runs.messages import Message

KEPT_STEPS = 4
"""Results of the last steps stay whole."""
LEAST_GAIN = 0.1
"""Share of the conversation's characters that makes it worth while."""
_LINES, _CHARACTERS = 3, 400
_LEAST_CUT = 200
"""Characters; a result from which fewer would be cut stays as it is."""


def shortened(result: Message) -> Message:
    """A tool's result cut to its beginning and a word on where the rest is; the message itself if it is short."""
    text = result.text
    head = "\n".join(text.splitlines()[:_LINES])[:_CHARACTERS]
    cut = len(text) - len(head)
    if cut < _LEAST_CUT:
        return result
    again = (
        "call read again to see it"
        if result.tool == "read"
        else "`read` still shows every attempt with its source and verdict: attempts, attempt N"
    )
    return result.model_copy(update={"text": f"{head}\n[shortened: {cut} characters left out; {again}]"})


def characters(messages: list[Message]) -> int:
    """What a request with these messages costs, roughly: text and arguments of calls."""
    return sum(len(m.text) + sum(len(call.arguments) for call in m.tool_calls) for m in messages)
