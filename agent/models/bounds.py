"""What one request to a model may use, and what is known of it while it is under way."""

from __future__ import annotations

from harness.allowance import Allowance
from runs.messages import Usage

LEAST_OUTPUT = 2048
"""Tokens of the shortest reply that is asked for. Above every provider's minimum (Anthropic's older models: 1024 for
thinking alone); a shorter one would hardly hold a call."""
MOST_OUTPUT = 128_000
"""Tokens of the longest reply of any model here."""
_CHARACTERS = 4
"""Of a token, when nobody says how many there were."""


def tokens_of(characters: int) -> int:
    """An estimate that is rather low: a run should not end for what it would not have spent."""
    return characters // _CHARACTERS


class Bounds:
    """Made for one request."""

    def __init__(
        self, output_tokens: int | None = None, use: Allowance | None = None, expected: Usage | None = None
    ) -> None:
        """`output_tokens` is the most that the reply may have, reasoning included, LEAST_OUTPUT or more (None: no
        limit); `use` counts waits and ends the request; `expected` is what the input will probably be."""
        self.output_tokens = output_tokens
        self.use = use or Allowance()
        self.expected = expected or Usage()
        self.said: Usage | None = None
        """What the stream itself has told of its usage so far."""
        self.written = 0
        """Characters that have been streamed."""

    @property
    def cut(self) -> bool:
        """Whether the request has been given up: what still arrives is nobody's."""
        return self.use.ended is not None

    def begin(self) -> None:
        """Another attempt: what a failed one has streamed is not paid for."""
        self.said, self.written = None, 0

    def used(self) -> Usage:
        """Of the reply so far. Where the provider tells only at the end: the expected input, and output by characters,
        without reasoning that is not shown."""
        usage = self.said or self.expected
        return usage.model_copy(update={"output_tokens": max(usage.output_tokens, tokens_of(self.written))})

    def most(self, largest: int, sure: int | None = None) -> int | None:
        """What to ask for of a model that writes at most `largest` tokens, or, for all we know, only `sure`: more than
        a model can do is refused. None: no limit is needed."""
        if self.output_tokens is None or self.output_tokens >= largest:
            return None
        return min(self.output_tokens, sure or largest)
