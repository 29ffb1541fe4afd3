"""Any provider that LiteLLM speaks to, in the OpenAI chat format."""

from __future__ import annotations

import copy
import json
import os
import random
import re
import time
import warnings
from collections.abc import Callable, Sequence
from email.utils import parsedate_to_datetime
from typing import Any

from agent.models.base import ModelError
from harness.errors import UsageError
from runs.messages import Message, ToolCall, Turn, Usage

ATTEMPTS = 6
MAX_BACKOFF_S = 60.0
MAX_RETRY_AFTER_S = 600.0
"""A provider that asks for a longer pause (a used-up daily quota) has failed for good."""
TIMEOUT_S = 900.0
"""Of one request; reasoning models think for minutes."""
_ANTHROPIC_CACHING: dict[str, Any] = {
    "cache_control_injection_points": [{"location": "message", "role": "system"}, {"location": "message", "index": -1}]
}
"""Others cache a repeated prefix unasked; without marks Anthropic charges the whole conversation anew at every step."""


class LiteLLM:
    """Keys come from the environment as LiteLLM documents (`OPENAI_API_KEY`, ...); the address from `api_base`,
    else `LITELLM_API_BASE`, else the provider's own variable (`OPENAI_API_BASE`) or default."""

    def __init__(self, model: str, *, api_base: str | None = None, sleep: Callable[[float], None] = time.sleep) -> None:
        """`model` is PROVIDER/MODEL. Raises UsageError if LiteLLM is not installed or does not know the provider."""
        self.name = model
        self._litellm = _import_litellm()
        self._api_base = api_base or os.environ.get("LITELLM_API_BASE")
        self._sleep = sleep
        provider = model.partition("/")[0]
        self._caching = _ANTHROPIC_CACHING if provider == "anthropic" else {}
        if provider not in self._litellm.provider_list:
            raise UsageError(
                f"{provider!r} is not a provider that LiteLLM knows: see https://docs.litellm.ai/docs/providers"
            )

    def priced(self) -> bool:
        try:
            key = self._litellm.get_model_info(self.name)["key"]
        except Exception:  # LiteLLM's "not mapped" is a plain Exception in some releases
            return False
        # Asked of the table itself: for some providers get_model_info answers 0.0 for models it has never heard of.
        return "input_cost_per_token" in self._litellm.model_cost.get(key, {})

    def reply(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Turn:
        import tenacity

        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(ATTEMPTS),
            retry=tenacity.retry_if_exception(_is_transient),
            wait=_wait,
            sleep=self._sleep,
            reraise=True,
        )
        try:
            return self._turn(retrying(self._complete, messages, tools))
        except Exception as error:
            raise ModelError(f"{self.name}: {_one_line(error)}") from None

    def _complete(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Any:
        return self._litellm.completion(
            model=self.name,
            # Copies, because LiteLLM edits schemas in place for some providers.
            messages=copy.deepcopy([_to_chat(message) for message in messages]),
            tools=copy.deepcopy([{"type": "function", "function": schema} for schema in tools]) or None,
            api_base=self._api_base,
            timeout=TIMEOUT_S,
            # Every retry is ours: LiteLLM's and the SDK's would multiply with it.
            num_retries=0,
            max_retries=0,
            **self._caching,
            # Our tools are never MCP servers, and looking for one imports `mcp`, which LiteLLM does not install.
            _skip_mcp_handler=True,
        )

    def _turn(self, response: Any) -> Turn:
        # Plain JSON, and lone surrogates (half an emoji) replaced: they cannot be written as UTF-8.
        raw = json.loads(
            json.dumps(response.model_dump(mode="json", warnings=False), ensure_ascii=False).encode(errors="replace")
        )
        choice = raw["choices"][0]
        message = choice["message"]
        calls = message.get("tool_calls") or []
        return Turn(
            text=message.get("content") or "",
            tool_calls=tuple(
                ToolCall(
                    id=call["id"], name=call["function"]["name"] or "", arguments=call["function"]["arguments"] or ""
                )
                for call in calls
            ),
            usage=_usage(raw.get("usage") or {}),
            cost_usd=self._cost(response),
            stop=choice.get("finish_reason") or "",
            opaque=_opaque(message, calls),
            raw=raw,
        )

    def _cost(self, response: Any) -> float | None:
        if not self.priced():
            return None
        try:
            return float(self._litellm.completion_cost(response, model=self.name))
        except Exception:  # a hole in LiteLLM's price table must not lose a reply that is already paid for
            return None


def _import_litellm() -> Any:
    # Prices of the installed release. LITELLM_LOCAL_MODEL_COST_MAP=False in the environment downloads newer ones.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        import litellm
        import tenacity  # noqa: F401  the same extra brings it
    except ImportError:
        raise UsageError("models need LiteLLM: pip install 'ringsmith[models]'") from None
    litellm.suppress_debug_info = True  # otherwise it prints advice to stdout at every error
    # About LiteLLM's own types, at the first response; nothing that a user could act on.
    warnings.filterwarnings("ignore", message="Item '.*' on TypedDict class '.*' is using the `ReadOnly` qualifier")
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


def _is_transient(error: BaseException) -> bool:
    """Rate limits, the server's own faults, timeouts and lost connections; never a request that is wrong."""
    status = getattr(error, "status_code", None)
    if not isinstance(status, int) or not (status in (408, 429) or status >= 500):
        return False
    return (_retry_after(error) or 0.0) <= MAX_RETRY_AFTER_S


def _wait(state: Any) -> float:
    """Seconds until the next attempt: what the provider asks for, else doubling from 1 s; jitter keeps lanes apart."""
    jitter = random.random()
    advised = _retry_after(state.outcome.exception())
    if advised is not None:
        return advised + jitter
    return min(MAX_BACKOFF_S, 2.0 ** (state.attempt_number - 1)) + jitter


def _retry_after(error: BaseException) -> float | None:
    """The Retry-After header in seconds, whether it counts seconds or names a date."""
    # LiteLLM's own field: the `response` that its exceptions carry is a made-up one.
    value = (getattr(error, "litellm_response_headers", None) or {}).get("retry-after")
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


_KEY_LIKE = re.compile(r"\b(?:sk|pk|gsk|xai)-[\w*.-]+|AIza[\w*-]+|(?<=Bearer )\S+|(?<=[?&]key=)[^&\s]+", re.IGNORECASE)


def _one_line(error: BaseException) -> str:
    """Kind and message of an error, without anything that is or looks like a key: this text is recorded and shown."""
    kind = type(error).__name__
    text = re.sub(rf"^((litellm\.)?{kind}: )*", f"{kind}: ", str(error), count=1)  # LiteLLM repeats the kind
    for name, value in os.environ.items():
        if len(value) >= 8 and re.search(r"KEY|TOKEN|SECRET|PASSWORD", name):
            text = text.replace(value, "[key]")
    text = " ".join(_KEY_LIKE.sub("[key]", text).split())
    return text if len(text) <= 400 else text[:400] + " ..."
