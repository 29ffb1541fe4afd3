"""Anthropic's models by their Messages API, streamed, with thinking carried over and the prompt cached by marks."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from agent import prices
from agent.models.base import ContextOverflowError, OnText
from agent.models.calling import SILENCE_S, Caller, StreamError, bounded, gate, plain, sdks, shown
from harness.errors import UsageError
from runs.messages import Message, ToolCall, Turn, Usage

_CONNECT_S = 10.0
_LONG_STEP_S = 240.0
"""Between two requests: nearly the five minutes that the cheaper cache lasts."""
_OLDER = re.compile(r"claude-(?:3|(?:opus|sonnet|haiku)-4-5)")
"""These take a budget for thinking and do not choose for themselves; they also write half as much."""
_FULL = "model_context_window_exceeded"
_STATUS = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""Of an error inside a stream, whose response had begun with 200; any other is the server's."""


class Anthropic:
    """The key comes from `ANTHROPIC_API_KEY`, the address from `base_url`, else `ANTHROPIC_BASE_URL`, else
    Anthropic's own."""

    def __init__(
        self,
        model: str,
        *,
        effort: str | None = None,
        base_url: str | None = None,
        on_text: OnText | None = None,
        timeout_s: float = SILENCE_S,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`model` is Anthropic's name for it. `effort` is sent as it is (`low` to `max`); None leaves it at the API's
        own. `on_text` gets the reply while it is written.

        Raises UsageError if the SDK or the key is missing.
        """
        anthropic, httpx2 = sdks("anthropic", "httpx2")
        self.name = f"anthropic/{model}"
        self._model = model
        self._effort = effort
        self._show = shown(on_text)
        self._clock = clock
        self._asked_at: float | None = None
        self._hour = False
        self._sdk = anthropic
        # Given to the SDK, which would otherwise go and look for other credentials on the disk.
        key = os.environ.get("ANTHROPIC_API_KEY")
        if not key:
            raise UsageError(f"{self.name} needs a key: set ANTHROPIC_API_KEY")
        self._client = anthropic.Anthropic(
            api_key=key, base_url=base_url, max_retries=0, timeout=httpx2.Timeout(timeout_s, connect=_CONNECT_S)
        )
        self._call = Caller(
            self.name,
            gate("anthropic", key, str(self._client.base_url)),
            lost=(anthropic.APIConnectionError, httpx2.TransportError),
            sleep=sleep,
            clock=clock,
        )

    def priced(self) -> bool:
        return prices.known("anthropic", self._model)

    def reply(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Turn:
        request = self._request(messages, tools)
        turn = self._call(lambda: self._turn(self._ask(request)))
        body = {name: value for name, value in request.items() if name != "extra_headers"}
        turn = turn.model_copy(update={"request": body})
        if turn.stop == _FULL:
            raise ContextOverflowError(f"{self.name}: the reply filled the model's context", turn)
        return turn

    def _request(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
        older = bool(_OLDER.match(self._model))
        request: dict[str, Any] = {
            "model": self._model,
            # The most that the model can write. Thinking counts too, and what is not used costs nothing.
            "max_tokens": 64_000 if older else 128_000,
            # The newer ones leave the text of their thinking out unless asked; the record should have it.
            "thinking": {"type": "enabled", "budget_tokens": 32_000}
            if older
            else {"type": "adaptive", "display": "summarized"},
            "system": [{"type": "text", "text": message.text} for message in messages if message.role == "system"],
            "messages": _to_messages(messages),
            "tools": [
                {
                    "name": schema["name"],
                    "description": schema["description"],
                    "input_schema": schema["parameters"],
                }
                for schema in tools
            ],
            "stream": True,
        }
        if older:
            # Without it they think before the first tool call only.
            request["extra_headers"] = {"anthropic-beta": "interleaved-thinking-2025-05-14"}
        if self._effort:
            request["output_config"] = {"effort": self._effort}
        request = {name: value for name, value in plain(request).items() if value != []}
        self._mark(request)
        return request

    def _mark(self, request: dict[str, Any]) -> None:
        """Set the four marks that the API allows: what is before one is written to the cache, or read from it.

        The last one writes. The last but one, which was the former request's last, reads: from the very end alone, the
        API looks back 20 blocks, and parallel tool calls can be more.
        """
        if self._asked_at is not None and self._clock() - self._asked_at > _LONG_STEP_S:
            # Once and for all: a lifetime of an hour costs more for what a step adds, a miss for the whole prompt.
            self._hour = True
        control = {"type": "ephemeral", "ttl": "1h" if self._hour else "5m"}
        asked = [message["content"] for message in request["messages"] if message["role"] == "user"]
        for blocks in (request.get("tools"), request.get("system"), *asked[-2:]):
            if blocks:
                blocks[-1]["cache_control"] = control

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The whole message, put together from its stream. `input` of a tool call is the text as the model wrote it."""
        asked_at = self._clock()
        message: dict[str, Any] = {}
        blocks: dict[int, dict[str, Any]] = {}
        try:
            with self._client.messages.create(**request) as stream:
                for event in bounded(stream):
                    if event.type == "message_start":
                        message = {"usage": {}, **_dump(event.message)}
                    elif event.type == "content_block_start":
                        blocks[event.index] = block = _dump(event.content_block)
                        if block["type"] == "tool_use":
                            block["input"] = json.dumps(block["input"]) if block.get("input") else ""
                    elif event.type == "content_block_delta":
                        self._add(event.delta, blocks[event.index])
                    elif event.type == "message_delta":
                        usage = {name: count for name, count in _dump(event.usage).items() if count is not None}
                        message |= _dump(event.delta)
                        message["usage"] |= usage
                    elif event.type == "message_stop":
                        # Read no further: a connection that breaks now must not lose a reply that is paid for.
                        self._asked_at = asked_at
                        return {**message, "content": [blocks[index] for index in sorted(blocks)]}
        except self._sdk.APIStatusError as error:
            if error.status_code < 400:
                raise StreamError(str(error), _STATUS.get(str(error.type), 500)) from None
            raise
        except ValueError as error:
            raise StreamError(f"the stream is not JSON: {error}") from None
        raise StreamError("the stream ended before the reply did")

    def _add(self, delta: Any, block: dict[str, Any]) -> None:
        if delta.type == "text_delta":
            block["text"] += delta.text
            self._show(delta.text, False)
        elif delta.type == "thinking_delta":
            block["thinking"] += delta.thinking
            self._show(delta.thinking, True)
        elif delta.type == "signature_delta":
            block["signature"] = delta.signature
        elif delta.type == "input_json_delta":
            block["input"] += delta.partial_json

    def _turn(self, message: dict[str, Any]) -> Turn:
        raw = plain(message)
        blocks, stop = raw["content"], raw.get("stop_reason") or ""
        text = "".join(block["text"] for block in blocks if block["type"] == "text")
        usage = _usage(raw["usage"])
        long_writes = (raw["usage"].get("cache_creation") or {}).get("ephemeral_1h_input_tokens") or 0
        if stop == "refusal":
            # What was refused must not go back, or the next request is refused for it; its calls may be cut off.
            text = text or (raw.get("stop_details") or {}).get("explanation") or ""
            blocks = []
        elif stop == _FULL:
            blocks = [block for block in blocks if block["type"] != "tool_use"]  # the last one is cut off
        return Turn(
            text=text,
            tool_calls=tuple(
                ToolCall(id=block["id"], name=block["name"], arguments=block["input"])
                for block in blocks
                if block["type"] == "tool_use"
            ),
            usage=usage,
            cost_usd=prices.cost_usd("anthropic", self._model, usage, long_writes=long_writes),
            stop=stop,
            opaque={"anthropic": [_kept(block) for block in blocks]},
            raw=raw,
        )


def _dump(model: Any) -> dict[str, Any]:
    fields: dict[str, Any] = model.model_dump(mode="json", exclude_unset=True, warnings=False)
    return fields


def _kept(block: dict[str, Any]) -> dict[str, Any]:
    """A block as it must go back. A call's input, which is long, is in the turn's `tool_calls` already."""
    left_out = ("input",) if block["type"] == "tool_use" else ()
    return {name: value for name, value in block.items() if value is not None and name not in left_out}


def _to_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """User and assistant in turns: the results of parallel calls belong into one message."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        blocks = _to_blocks(message)
        if message.role == "system" or not blocks:
            continue
        role = "assistant" if message.role == "assistant" else "user"
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"].extend(blocks)
        else:
            turns.append({"role": role, "content": blocks})
    return turns


def _to_blocks(message: Message) -> list[dict[str, Any]]:
    if message.role == "tool":
        return [{"type": "tool_result", "tool_use_id": message.call_id, "content": message.text}]
    kept = message.opaque.get("anthropic")
    if kept is None:
        kept = [{"type": "text", "text": message.text}]
        kept += [{"type": "tool_use", "id": call.id, "name": call.name} for call in message.tool_calls]
    calls = {call.id: call for call in message.tool_calls}
    blocks = [
        {**block, "input": _input(calls[block["id"]].arguments)} if block["type"] == "tool_use" else block
        for block in kept
        if block["type"] != "text" or block["text"].strip()  # blank text, which models write, is refused
    ]
    while blocks and blocks[-1]["type"] in ("thinking", "redacted_thinking"):
        blocks.pop()  # a message must not end with it
    return blocks


def _input(arguments: str) -> dict[str, Any]:
    """The API takes an object only; malformed JSON goes back as Anthropic's documentation advises."""
    try:
        given = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        given = None
    return given if isinstance(given, dict) else {"INVALID_JSON": arguments}


def _usage(raw: dict[str, Any]) -> Usage:
    read, written = raw.get("cache_read_input_tokens") or 0, raw.get("cache_creation_input_tokens") or 0
    return Usage(
        input_tokens=(raw.get("input_tokens") or 0) + read + written,
        cached_tokens=read,
        cache_write_tokens=written,
        output_tokens=raw.get("output_tokens") or 0,
        reasoning_tokens=(raw.get("output_tokens_details") or {}).get("thinking_tokens") or 0,
    )
