"""What one request to a model may use, what is known of it while it is under way, and how it is given up."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Callable
from typing import Any

from harness.allowance import Allowance
from runs.messages import Turn, Usage

LEAST_OUTPUT = 2048
"""Tokens of the shortest reply that is asked for. Above every provider's minimum (Anthropic's older models: 1024 for
thinking alone); a shorter one would hardly hold a call."""
MOST_OUTPUT = 128_000
"""Tokens of the longest reply of any model here."""
_LOOK_S = 0.1
"""How often it is looked whether a limit is reached."""
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
        self.stream: Any = None
        """What the reply is read from, as the SDK made it."""

    @property
    def cut(self) -> bool:
        """Whether the request has been given up: what still arrives is nobody's."""
        return self.use.ended is not None

    def begin(self) -> None:
        """Another attempt: what a failed one has streamed is not paid for."""
        self.said, self.written, self.stream = None, 0, None

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


class GivenUpError(Exception):
    """Its text is the limit that was reached."""


def within(bounds: Bounds, request: Callable[[], Turn]) -> Turn:
    """The request's result, or GivenUpError at once when a limit is reached, even if the provider is silent: a thread
    waits for it, which is then left to itself. Where `_hang_up` knows no way it ends at the next byte."""
    if not bounds.use.bounded:
        return request()
    results: queue.SimpleQueue[tuple[Turn | None, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            results.put((request(), None))
        except BaseException as error:
            results.put((None, error))

    # Not of a pool: its threads would be waited for when the process ends.
    threading.Thread(target=work, daemon=True, name="model request").start()
    while True:
        try:
            turn, error = results.get(timeout=_LOOK_S)
        except queue.Empty:
            if (limit := bounds.use.over()) is not None:
                _hang_up(bounds.stream)
                raise GivenUpError(limit) from None
            continue
        if turn is None:
            assert error is not None
            raise error
        return turn


def _hang_up(stream: Any) -> None:
    """End the connection of an httpx response under a thread that reads it: a provider that goes on thinking for nobody
    goes on charging. Closing would not do: a socket that is being read stays open."""
    extensions = getattr(getattr(stream, "response", None), "extensions", None) or {}
    connection = extensions.get("network_stream")
    if connection is not None and (sock := connection.get_extra_info("socket")) is not None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
