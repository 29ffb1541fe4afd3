"""Gemini, by Google's own SDK: a reply's parts go back as they came, each thought signature in its place."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from agent import prices
from agent.models.base import OnText
from agent.models.calling import SILENCE_S, Caller, StreamError, bounded, gate, plain, sdks, shown
from harness.errors import UsageError
from runs.messages import Message, ToolCall, Turn, Usage

if TYPE_CHECKING:
    from google.genai import errors, types

_OWN_ID = "ringsmith_"
"""Begins the id of a call to which the server gave none: it is not sent back."""
_PARTS = "gemini_parts"
"""Where `Turn.opaque` has a reply's parts."""
_DONE = ("STOP", "MAX_TOKENS")
"""Any other reason to stop is told in the reply's text: the model must learn why its reply came to nothing."""
_NOT_THE_SERVERS = {"sdkHttpResponse", "automaticFunctionCallingHistory", "parsed"}
"""Fields that the SDK adds to a response."""


class Google:
    """The key comes from `GEMINI_API_KEY` or `GOOGLE_API_KEY`, the address from `GOOGLE_GEMINI_BASE_URL` or Google.

    Nothing is done about caching: a repeated prefix is cached unasked, and what is sent only grows at its end.
    """

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
        """`model` is Google's name for it, `effort` one of its thinking levels (None: the model's default). `on_text`
        gets the reply while it is written.

        Raises UsageError if the SDK or the key is missing or there is no such level.
        """
        self.name = f"google/{model}"
        self._model = model
        self._show = shown(on_text)
        self._sent: dict[str, Any] | None = None
        self._clock = clock
        address = base_url or os.environ.get("GOOGLE_GEMINI_BASE_URL") or ""  # which the SDK reads itself
        self._client = _client(self.name, base_url, timeout_s, self._keep)
        self._thinking = _level(effort) if effort else None
        self._call = Caller(self.name, gate("google", _key(), address), lost=_lost(), sleep=sleep, clock=clock)

    def priced(self) -> bool:
        return prices.known("google", self._model)

    def reply(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Turn:
        contents, config = _contents(messages), self._config(messages, tools)
        self._sent = None
        return self._call(lambda: self._turn(self._ask(contents, config))).model_copy(update={"request": self._sent})

    def _keep(self, request: Any) -> None:
        """The SDK makes the body, so it is taken from what is sent."""
        with contextlib.suppress(ValueError):
            self._sent = json.loads(request.content)

    def _config(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> types.GenerateContentConfig:
        from google.genai import types

        declared = [
            types.FunctionDeclaration(
                name=tool["name"], description=tool["description"], parameters_json_schema=tool["parameters"]
            )
            for tool in tools
        ]
        return types.GenerateContentConfig(
            system_instruction="\n\n".join(m.text for m in messages if m.role == "system") or None,
            tools=[types.Tool(function_declarations=declared)] if declared else None,
            automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
            thinking_config=types.ThinkingConfig(thinking_level=self._thinking) if self._thinking else None,
        )

    def _ask(self, contents: list[types.ContentUnion], config: types.GenerateContentConfig) -> dict[str, Any]:
        """One response, put together from its stream."""
        from google.genai import errors

        chunks = []
        try:
            stream = self._client.models.generate_content_stream(model=self._model, contents=contents, config=config)
            for chunk in bounded(stream, self._clock):
                sent = chunk.model_dump(mode="json", by_alias=True, exclude_none=True)
                chunks.append(plain({key: value for key, value in sent.items() if key not in _NOT_THE_SERVERS}))
                parts = _parts(chunks[-1])
                self._show("".join(part.get("text", "") for part in parts if part.get("thought")), True)
                self._show(_text(parts), False)
        except errors.APIError as error:
            if _daily(error):
                raise _RefusedError(f"{error.code} {error.status}: {error.message}") from None
            raise
        response = _merged(chunks)
        if reason := (response.get("promptFeedback") or {}).get("blockReason"):
            raise _RefusedError(f"the prompt was blocked: {reason}")
        if "finishReason" not in response["candidates"][0]:
            raise StreamError("the stream ended before the reply did")
        return response

    def _turn(self, response: dict[str, Any]) -> Turn:
        parts, stop = _parts(response), response["candidates"][0]["finishReason"]
        text, usage = _text(parts), _usage(response.get("usageMetadata") or {})
        if stop not in _DONE:
            text = "\n\n".join(filter(None, [text, f"[The reply ended early: {stop}]"]))
        calls = [part["functionCall"] for part in parts if "functionCall" in part]
        return Turn(
            text=text,
            tool_calls=tuple(
                ToolCall(
                    id=made.get("id") or f"{_OWN_ID}{uuid.uuid4().hex[:12]}",
                    name=made.get("name") or "",
                    arguments=json.dumps(made.get("args") or {}, ensure_ascii=False),
                )
                for made in calls
            ),
            usage=usage,
            cost_usd=prices.cost_usd("google", self._model, usage),
            stop=stop,
            opaque={_PARTS: parts} if parts else {},
            raw=response,
        )


class _RefusedError(Exception):
    """Asking again would be no use, whatever the status says."""


def _client(name: str, base_url: str | None, timeout_s: float, on_request: Callable[[Any], None]) -> Any:
    (genai,) = sdks("google.genai")
    hooks = {"event_hooks": {"request": [on_request]}}
    options = genai.types.HttpOptions(base_url=base_url, timeout=int(timeout_s * 1000), client_args=hooks)
    try:
        return genai.Client(http_options=options)  # without `retry_options` it retries nothing
    except ValueError:
        raise UsageError(f"{name} needs a key: set GEMINI_API_KEY") from None


def _key() -> str:
    """In the SDK's order; empty where it has other credentials."""
    return os.environ.get("GOOGLE_API_KEY") or os.environ.get("GEMINI_API_KEY") or ""


def _lost() -> tuple[type[BaseException], ...]:
    """Connections that broke, by whichever HTTP library the SDK uses, and chunks that broke with them."""
    from google.genai import errors

    libraries = [importlib.import_module(name) for name in ("httpx", "httpx2") if importlib.util.find_spec(name)]
    return (errors.UnknownApiResponseError, *(library.TransportError for library in libraries))


def _level(name: str) -> types.ThinkingLevel:
    from google.genai import types

    levels = {level.value.lower(): level for level in types.ThinkingLevel if "UNSPECIFIED" not in level.value}
    if name not in levels:
        raise UsageError(f"{name!r} is not a thinking level: choose from {', '.join(levels)}")
    return levels[name]


def _contents(messages: Sequence[Message]) -> list[types.ContentUnion]:
    from google.genai import types

    contents: list[dict[str, Any]] = []
    answering = False
    for message in messages:
        if message.role == "tool" and answering:
            # The answers to calls that were made together belong together.
            contents[-1]["parts"].append(_answer(message))
        elif message.role != "system" and (parts := _sent(message)):
            contents.append({"role": "model" if message.role == "assistant" else "user", "parts": parts})
        answering = message.role == "tool"
    # From JSON: only then are signatures, which are bytes, read from base64.
    return [types.Content.model_validate_json(json.dumps(content)) for content in contents]


def _sent(message: Message) -> list[dict[str, Any]]:
    if message.role == "tool":
        return [_answer(message)]
    if message.opaque.get(_PARTS):
        return list(message.opaque[_PARTS])
    # A user's text, or a reply that is not this model's own or had no parts.
    text = [{"text": message.text}] if message.text else []
    return [*text, *({"functionCall": _identified(c.id, name=c.name, args=_object(c))} for c in message.tool_calls)]


def _answer(message: Message) -> dict[str, Any]:
    return {"functionResponse": _identified(message.call_id, name=message.tool, response={"output": message.text})}


def _identified(id: str, **fields: Any) -> dict[str, Any]:
    return fields if not id or id.startswith(_OWN_ID) else {"id": id, **fields}


def _object(made: ToolCall) -> dict[str, Any]:
    try:
        arguments = json.loads(made.arguments or "{}")
    except ValueError:
        return {}
    return arguments if isinstance(arguments, dict) else {}


def _parts(response: dict[str, Any]) -> list[dict[str, Any]]:
    candidates = response.get("candidates") or [{}]
    return (candidates[0].get("content") or {}).get("parts") or []


def _text(parts: Iterable[dict[str, Any]]) -> str:
    return "".join(part.get("text", "") for part in parts if not part.get("thought"))


def _merged(chunks: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """One response in the form of one that was not streamed: later fields win, parts follow each other."""
    response: dict[str, Any] = {}
    candidate: dict[str, Any] = {}
    parts: list[dict[str, Any]] = []
    for chunk in chunks:
        response |= {key: value for key, value in chunk.items() if key != "candidates"}
        candidate |= (chunk.get("candidates") or [{}])[0]
        for part in _parts(chunk):
            _append(parts, part)
    return {"candidates": [{**candidate, "content": {"role": "model", "parts": parts}}], **response}


def _append(parts: list[dict[str, Any]], part: dict[str, Any]) -> None:
    """Joins a piece of text to the text before it. A part with a signature stays by itself, even an empty one."""
    if part.keys() == {"text"} and not part["text"]:
        return
    if parts and part.keys() == parts[-1].keys() and part.keys() in ({"text"}, {"text", "thought"}):
        parts[-1] = {**part, "text": parts[-1]["text"] + part["text"]}
    else:
        parts.append(part)


def _usage(raw: dict[str, Any]) -> Usage:
    thoughts = raw.get("thoughtsTokenCount") or 0
    return Usage(
        input_tokens=(raw.get("promptTokenCount") or 0) + (raw.get("toolUsePromptTokenCount") or 0),
        cached_tokens=raw.get("cachedContentTokenCount") or 0,
        output_tokens=(raw.get("candidatesTokenCount") or 0) + thoughts,
        reasoning_tokens=thoughts,
    )


def _daily(error: errors.APIError) -> bool:
    """Whether a quota of the day is used up. The pause that is advised all the same, of seconds, is then no use."""
    body = error.details if isinstance(error.details, dict) else {}
    inner = body.get("error")
    details = inner.get("details") if isinstance(inner, dict) else None
    failures = [detail for detail in details or [] if str(detail.get("@type")).endswith("google.rpc.QuotaFailure")]
    violations = [violation for failure in failures for violation in failure.get("violations") or []]
    return any("PerDay" in str(violation.get("quotaId")) for violation in violations)
