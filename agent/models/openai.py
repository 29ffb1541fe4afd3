"""OpenAI's models by their Responses API, streamed. Nothing is stored there: every request carries the conversation."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from agent import prices
from agent.models.base import OnText
from agent.models.calling import SILENCE_S, Caller, StreamError, bounded, gate, plain, sdks, shown
from harness.errors import UsageError
from runs.messages import Message, ToolCall, Turn, Usage

_CONNECT_S = 10.0
_NO_REASONING = ("gpt-3", "gpt-4", "chatgpt-")
"""Models that refuse a request which asks for reasoning items."""
_ENDS = ("response.completed", "response.incomplete", "response.failed")
_THOUGHTS = ("response.reasoning_summary_text.delta", "response.reasoning_text.delta")
"""OpenAI's summaries, and what servers of open models say in full."""
_OURS = {
    "context_length_exceeded",
    "invalid_prompt",
    "invalid_request_error",
    "bio_policy",
    "cyber_policy",
    "data_residency_mismatch",
}
"""Codes of an error inside a stream that the same request would meet again; any other is the server's."""


class OpenAI:
    """The key comes from `OPENAI_API_KEY`, the address from `base_url`, else `OPENAI_BASE_URL`, else OpenAI's own."""

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
        """`model` is OpenAI's name for it. `effort` is sent as it is (`low`, `medium`, `high`, ...); None leaves the
        choice to the model. `on_text` gets the reply while it is written.

        Raises UsageError if the SDK or the key is missing.
        """
        openai, httpx = sdks("openai", "httpx")
        self.name = f"openai/{model}"
        self._model = model
        self._effort = effort
        self._show = shown(on_text)
        self._sdk = openai
        try:
            self._client = openai.OpenAI(
                base_url=base_url, max_retries=0, timeout=httpx.Timeout(timeout_s, connect=_CONNECT_S)
            )
        except openai.OpenAIError:
            raise UsageError(
                f"{self.name} needs a key: set OPENAI_API_KEY (any text for a server that takes none)"
            ) from None
        self._call = Caller(
            self.name,
            gate("openai", self._client.api_key, str(self._client.base_url)),
            lost=(openai.APIConnectionError, httpx.TransportError),
            sleep=sleep,
            clock=clock,
        )

    def priced(self) -> bool:
        return prices.known("openai", self._model)

    def reply(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Turn:
        request: dict[str, Any] = {
            "model": self._model,
            "input": [item for message in messages for item in _to_items(message)],
            "store": False,
            "prompt_cache_key": _cache_key(messages),
            "stream": True,
        }
        if not self._model.startswith(_NO_REASONING):
            request["include"] = ["reasoning.encrypted_content"]
        if self._effort:
            request["reasoning"] = {"effort": self._effort}
        if tools:
            request["tools"] = [{"type": "function", **schema, "strict": False} for schema in tools]
            request["parallel_tool_calls"] = True
        request = plain(request)
        return self._call(lambda: self._turn(self._ask(request))).model_copy(update={"request": request})

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The whole response, once it has been streamed."""
        try:
            with self._client.responses.create(**request) as stream:
                for event in bounded(stream):
                    if event.type in ("response.output_text.delta", "response.refusal.delta"):
                        self._show(event.delta, False)
                    elif event.type in _THOUGHTS:
                        self._show(event.delta, True)
                    elif event.type == "error":
                        raise _failure(event.code, event.message)
                    elif event.type in _ENDS:
                        # Read no further: a connection that breaks now must not lose a reply that is paid for.
                        response: dict[str, Any] = event.response.model_dump(
                            mode="json", exclude_unset=True, warnings=False
                        )
                        return response
        except (self._sdk.APIStatusError, self._sdk.APIConnectionError):
            raise
        except self._sdk.APIError as error:  # inside the stream, so that it has no status
            raise _failure(error.code, error.message) from None
        except ValueError as error:
            raise StreamError(f"the stream is not JSON: {error}") from None
        raise StreamError("the stream ended before the reply did")

    def _turn(self, response: dict[str, Any]) -> Turn:
        raw = plain(response)
        if raw.get("status") == "failed":
            error = raw.get("error") or {}
            raise _failure(error.get("code"), error.get("message") or "no reason given")
        for echo in ("instructions", "tools"):  # what was sent, once more in every reply
            raw.pop(echo, None)
        items = raw.get("output") or []
        parts = [part for item in items if item["type"] == "message" for part in item["content"]]
        usage = _usage(raw.get("usage") or {})
        reason = (raw.get("incomplete_details") or {}).get("reason") or raw.get("status") or ""
        return Turn(
            text="".join(part.get("text") or part.get("refusal") or "" for part in parts),
            tool_calls=tuple(
                ToolCall(id=item["call_id"], name=item["name"], arguments=item["arguments"])
                for item in items
                if item["type"] == "function_call"
            ),
            usage=usage,
            cost_usd=prices.cost_usd("openai", self._model, usage),
            stop="refusal" if any(part["type"] == "refusal" for part in parts) else reason,
            opaque={"openai": _kept(items)},
            raw=raw,
        )


def _failure(code: str | None, message: str) -> StreamError:
    status = 429 if code in ("rate_limit_exceeded", "insufficient_quota") else 400 if code in _OURS else 500
    return StreamError(f"{code}: {message}", status)


def _cache_key(messages: Sequence[Message]) -> str:
    """Sends requests with the same beginning to the machine that has it cached; the same after a resume."""
    beginning = "\n".join(message.text for message in messages[:2])
    return f"ringsmith-{hashlib.sha256(beginning.encode(errors='replace')).hexdigest()[:16]}"


def _kept(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items as they must go back. A call's arguments, which are long, are in the turn's `tool_calls` already."""
    while items and items[-1]["type"] == "reasoning":
        items = items[:-1]  # the API refuses reasoning that nothing follows
    return [
        {
            name: value
            for name, value in item.items()
            if value is not None and (name, item["type"]) != ("arguments", "function_call")
        }
        for item in items
    ]


def _to_items(message: Message) -> Iterator[dict[str, Any]]:
    if message.role == "tool":
        yield {"type": "function_call_output", "call_id": message.call_id, "output": message.text}
    elif message.role != "assistant":
        yield {"role": message.role, "content": message.text}
    elif "openai" in message.opaque:
        arguments = {call.id: call.arguments for call in message.tool_calls}
        for item in message.opaque["openai"]:
            yield {**item, "arguments": arguments[item["call_id"]]} if item["type"] == "function_call" else item
    else:
        if message.text:
            yield {"role": "assistant", "content": message.text}
        for call in message.tool_calls:
            yield {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}


def _usage(raw: dict[str, Any]) -> Usage:
    sent = raw.get("input_tokens_details") or {}
    return Usage(
        input_tokens=raw.get("input_tokens") or 0,
        cached_tokens=sent.get("cached_tokens") or 0,
        cache_write_tokens=sent.get("cache_write_tokens") or 0,
        output_tokens=raw.get("output_tokens") or 0,
        reasoning_tokens=(raw.get("output_tokens_details") or {}).get("reasoning_tokens") or 0,
    )
