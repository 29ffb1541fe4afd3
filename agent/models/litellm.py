"""Any provider that LiteLLM speaks to, in the OpenAI chat format."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from agent import prices
from agent.models.base import OnText
from agent.models.bounds import Bounds
from agent.models.calling import SILENCE_S, Caller, gate, plain, sdks, shown
from harness.errors import UsageError
from runs.messages import Message, ToolCall, Turn, Usage

_LONG_THINKING = 8192
"""Tokens; more than LiteLLM gives any effort."""
_ANTHROPIC_CACHING: dict[str, Any] = {
    "cache_control_injection_points": [{"location": "message", "role": "system"}, {"location": "message", "index": -1}]
}
"""Others cache a repeated prefix unasked; without marks Anthropic charges the whole conversation anew at every step."""

_NOT_BODY = {"extra_body", "extra_headers", "extra_query", "timeout"}
"""Of what LiteLLM calls the body where it goes on by OpenAI's SDK, which takes these out."""


class LiteLLM:
    """Keys come from the environment as LiteLLM documents (`OPENAI_API_KEY`, ...); the address from `api_base`,
    else `LITELLM_API_BASE`, else the provider's own variable (`OPENAI_API_BASE`) or default."""

    def __init__(
        self,
        model: str,
        *,
        effort: str | None = None,
        api_base: str | None = None,
        on_text: OnText | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`model` is PROVIDER/MODEL. `effort` is LiteLLM's `reasoning_effort`. Replies are not streamed: `on_text`
        gets each as a whole.

        Raises UsageError if LiteLLM is not installed or does not know the provider.
        """
        self.name = model
        self._litellm = _import_litellm()
        self._effort = effort
        self._api_base = api_base or os.environ.get("LITELLM_API_BASE")
        self._show = shown(on_text)
        self._sent: dict[str, Any] | None = None
        provider = model.partition("/")[0]
        self._caching = _ANTHROPIC_CACHING if provider == "anthropic" else {}
        if provider not in self._litellm.provider_list:
            raise UsageError(
                f"{provider!r} is not a provider that LiteLLM knows: see https://docs.litellm.ai/docs/providers"
            )
        # LiteLLM finds the key itself, in the environment: one provider at one address has one.
        self._call = Caller(model, gate(provider, "", self._api_base or ""), sleep=sleep, clock=clock)

    def priced(self) -> bool:
        return prices.known(*self._provider_and_model()) or self._mapped()

    def cost_usd(self, usage: Usage) -> float | None:
        cost_usd = prices.cost_usd(*self._provider_and_model(), usage)
        if cost_usd is not None or not self._mapped():
            return cost_usd
        try:
            return sum(
                self._litellm.cost_per_token(
                    model=self.name,
                    prompt_tokens=usage.input_tokens,
                    completion_tokens=usage.output_tokens,
                    cache_read_input_tokens=usage.cached_tokens,
                    cache_creation_input_tokens=usage.cache_write_tokens,
                )
            )
        except Exception:  # as in `_cost`
            return None

    def reply(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]], bounds: Bounds | None = None) -> Turn:
        bounds = bounds or Bounds()
        self._sent = None
        turn = self._call(lambda: self._turn(self._complete(messages, tools, bounds)), bounds)
        self._show(turn.text, False)
        return turn.model_copy(update={"request": self._sent})

    def _keep(self, call: dict[str, Any]) -> None:
        """LiteLLM makes the body and shows it before it is sent, and again when there is an answer."""
        body = (call.get("additional_args") or {}).get("complete_input_dict")
        if call.get("log_event_type") != "pre_api_call":
            return
        with contextlib.suppress(TypeError, ValueError):  # what a provider's code shows need not be JSON
            body = json.loads(body) if isinstance(body, str) else body
            if isinstance(body, dict):
                kept = {name: value for name, value in body.items() if name not in _NOT_BODY}
                self._sent = plain({**kept, **(body.get("extra_body") or {})})

    def _complete(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]], bounds: Bounds) -> Any:
        most = self._most(bounds)
        # LiteLLM asks for a loop for its logging; in a main thread without one asyncio makes it, and nobody closes it.
        # Told that there is none, LiteLLM runs its own and closes it. A loop that is running is found all the same.
        asyncio.set_event_loop(None)
        return self._litellm.completion(
            model=self.name,
            # Copies, because LiteLLM edits schemas in place for some providers.
            messages=plain([_to_chat(message) for message in messages]),
            tools=plain([{"type": "function", "function": schema} for schema in tools]) or None,
            api_base=self._api_base,
            # Some providers' thinking is a number of tokens, for which a short reply has no room.
            reasoning_effort=None if most is not None and most <= _LONG_THINKING else self._effort,
            max_tokens=most,
            timeout=SILENCE_S,
            # Every retry is ours: LiteLLM's and the SDK's would multiply with it.
            num_retries=0,
            max_retries=0,
            logger_fn=self._keep,
            **self._caching,
            # Our tools are never MCP servers, and looking for one imports `mcp`, which LiteLLM does not install.
            _skip_mcp_handler=True,
        )

    def _most(self, bounds: Bounds) -> int | None:
        try:
            largest = self._litellm.get_model_info(self.name).get("max_output_tokens")
        except Exception:  # as in `_mapped`
            largest = None
        return bounds.most(largest) if largest else bounds.most(32_768, 16_384)

    def _turn(self, response: Any) -> Turn:
        raw = plain(response.model_dump(mode="json", warnings=False))
        choice = raw["choices"][0]
        message = choice["message"]
        calls = message.get("tool_calls") or []
        usage = _usage(raw.get("usage") or {})
        # A field of its own from 1.110 on.
        refusal = message.get("refusal") or (message.get("provider_specific_fields") or {}).get("refusal")
        return Turn(
            text=message.get("content") or refusal or "",
            tool_calls=tuple(
                ToolCall(
                    id=call["id"], name=call["function"]["name"] or "", arguments=call["function"]["arguments"] or ""
                )
                for call in calls
            ),
            usage=usage,
            cost_usd=self._cost(response, usage),
            stop="refusal" if refusal else choice.get("finish_reason") or "",
            opaque=_opaque(message, calls),
            raw=raw,
        )

    def _cost(self, response: Any, usage: Usage) -> float | None:
        """By our own table; where that has no price, by LiteLLM's."""
        cost_usd = prices.cost_usd(*self._provider_and_model(), usage)
        if cost_usd is not None or not self._mapped():
            return cost_usd
        try:
            return float(self._litellm.completion_cost(response, model=self.name))
        except Exception:  # a hole in LiteLLM's price table must not lose a reply that is already paid for
            return None

    def _provider_and_model(self) -> tuple[str, str]:
        provider, _, model = self.name.partition("/")
        return provider, model

    def _mapped(self) -> bool:
        """Whether LiteLLM has a price."""
        try:
            key = self._litellm.get_model_info(self.name)["key"]
        except Exception:  # LiteLLM's "not mapped" is a plain Exception in some releases
            return False
        # Asked of the table itself: for some providers get_model_info answers 0.0 for models it has never heard of.
        return "input_cost_per_token" in self._litellm.model_cost.get(key, {})


def _import_litellm() -> Any:
    # Prices of the installed release. LITELLM_LOCAL_MODEL_COST_MAP=False in the environment downloads newer ones.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    (litellm,) = sdks("litellm")
    litellm.suppress_debug_info = True  # otherwise it prints advice to stdout at every error
    # About LiteLLM's own types, at the first response; nothing that a user could act on.
    readonly = "Items? .* on TypedDict class '.*' (is|are) using the `ReadOnly` qualifier"
    warnings.filterwarnings("ignore", message=readonly)
    return litellm


def _to_chat(message: Message) -> dict[str, Any]:
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.call_id, "content": message.text}
    chat: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.tool_calls:
        fields = message.opaque.get("tool_calls", {})
        chat["content"] = message.text or None  # some providers refuse an empty string beside tool calls
        chat["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
                **({"provider_specific_fields": fields[call.id]} if call.id in fields else {}),
            }
            for call in message.tool_calls
        ]
    if blocks := message.opaque.get("thinking_blocks"):
        chat["thinking_blocks"] = blocks
    return chat


def _opaque(message: dict[str, Any], calls: list[dict[str, Any]]) -> dict[str, Any]:
    """Gemini's thought signatures (per call) and Anthropic's thinking blocks, which the next request must carry."""
    opaque: dict[str, Any] = {}
    if fields := {
        call["id"]: call["provider_specific_fields"] for call in calls if call.get("provider_specific_fields")
    }:
        opaque["tool_calls"] = fields
    if blocks := message.get("thinking_blocks"):
        opaque["thinking_blocks"] = blocks
    return opaque


def _usage(raw: dict[str, Any]) -> Usage:
    prompt = raw.get("prompt_tokens_details") or {}
    completion = raw.get("completion_tokens_details") or {}
    return Usage(
        input_tokens=raw.get("prompt_tokens") or 0,
        cached_tokens=prompt.get("cached_tokens") or 0,
        cache_write_tokens=raw.get("cache_creation_input_tokens") or 0,
        output_tokens=raw.get("completion_tokens") or 0,
        reasoning_tokens=completion.get("reasoning_tokens") or 0,
    )
