"""The LiteLLM adapter against a local HTTP server that speaks the providers' wire formats."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from email.utils import formatdate
from typing import Any

import pytest

from agent import prices
from agent.models import make
from agent.models.base import ContextOverflowError, ModelError
from agent.models.calling import ATTEMPTS
from agent.models.litellm import LiteLLM
from harness.errors import UsageError
from runs.messages import Message, ToolCall, Turn, Usage
from tests.agent.provider import HELLO, KEY, TOOLS, Answer, Server, Time

# LiteLLM's own types, seen by pydantic when the first response is built.
pytestmark = pytest.mark.filterwarnings("ignore:Item '.*' on TypedDict class '.*' is using the `ReadOnly` qualifier")


def reply(content: str | None = "hi", calls: list[tuple[str, str, str]] | None = None, **usage: Any) -> Answer:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id, name, arguments in calls
        ]
    return Answer(
        body={
            "id": "x",
            "object": "chat.completion",
            "created": 1,
            "model": "test-model",
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120, **usage},
        }
    )


def failure(status: int, message: str = "no", **headers: str) -> Answer:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, {"error": {"message": message, "type": "t", "code": "c"}}, sent)


@pytest.fixture
def model(server: Server, time: Time, monkeypatch: pytest.MonkeyPatch) -> LiteLLM:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    return LiteLLM("openai/test-model", api_base=server.url, sleep=time.sleep, clock=time.clock)


def test_a_reply(server: Server, model: LiteLLM) -> None:
    server.answers = [
        reply(
            "hi",
            [("c1", "compile", "{}"), ("c2", "edit_candidate", '{"old": "a"')],
            prompt_tokens_details={"cached_tokens": 64},
            completion_tokens_details={"reasoning_tokens": 7},
        )
    ]
    turn = model.reply(HELLO, TOOLS)
    assert turn.text == "hi"
    assert turn.tool_calls == (
        ToolCall(id="c1", name="compile", arguments="{}"),
        ToolCall(id="c2", name="edit_candidate", arguments='{"old": "a"'),  # malformed JSON passes through
    )
    assert turn.usage == Usage(input_tokens=100, cached_tokens=64, output_tokens=20, reasoning_tokens=7)
    assert (turn.stop, turn.cost_usd) == ("tool_calls", None)
    assert turn.raw and turn.raw["choices"][0]["message"]["content"] == "hi"
    assert KEY not in turn.model_dump_json()
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    (request,) = server.requests
    assert request["model"] == "test-model"
    assert request["messages"] == [{"role": "system", "content": "be good"}, {"role": "user", "content": "hello"}]
    assert request["tools"] == [{"type": "function", "function": tool} for tool in TOOLS]


def test_the_conversation_goes_back_in_chat_format(server: Server, model: LiteLLM) -> None:
    server.answers = [reply()]
    call = ToolCall(id="c1", name="compile", arguments="{}")
    model.reply(
        (
            *HELLO,
            Message(role="assistant", tool_calls=(call,)),
            Message(role="tool", text="built", call_id="c1", tool="compile"),
        ),
        TOOLS,
    )
    assert server.requests[0]["messages"][2:] == [
        {
            "role": "assistant",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "compile", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "built"},
    ]


def test_half_an_emoji_is_replaced(server: Server, model: LiteLLM) -> None:
    server.answers = [reply("half \ud83d")]
    turn = model.reply(HELLO, TOOLS)
    assert turn.text == "half ?"
    assert turn.model_dump_json()


def test_retry_after_is_honoured(server: Server, model: LiteLLM, time: Time) -> None:
    server.answers = [
        failure(429, Retry_After="7"),
        failure(429, Retry_After=formatdate(0, usegmt=True)),  # a date, long past
        reply(),
    ]
    turn = model.reply(HELLO, TOOLS)
    assert turn.text == "hi" and turn.waited_s == pytest.approx(sum(time.slept))
    assert 7 <= time.slept[0] < 8 and 0 <= time.slept[1] < 1
    assert len(server.requests) == 3


def test_the_servers_own_faults_are_retried(server: Server, model: LiteLLM, time: Time) -> None:
    server.answers = [failure(500), failure(503), failure(502), reply()]
    assert model.reply(HELLO, TOOLS).text == "hi"
    assert all(most / 2 <= seconds <= most for most, seconds in zip((2, 4, 8), time.slept, strict=True))
    assert len(server.requests) == 4, "no retries but ours"


def test_retries_end(server: Server, model: LiteLLM, time: Time) -> None:
    server.answers = [failure(429) for _ in range(ATTEMPTS + 1)]
    with pytest.raises(ModelError, match=r"openai/test-model: RateLimitError: "):
        model.reply(HELLO, TOOLS)
    assert (len(server.requests), len(time.slept)) == (ATTEMPTS, ATTEMPTS - 1)


def test_a_pause_of_hours_is_not_taken(server: Server, model: LiteLLM, time: Time) -> None:
    server.answers = [failure(429, Retry_After="86400")]
    with pytest.raises(ModelError, match="RateLimitError"):
        model.reply(HELLO, TOOLS)
    assert time.slept == []


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_a_wrong_request_fails_at_once(server: Server, model: LiteLLM, time: Time, status: int) -> None:
    server.answers = [failure(status, f"Incorrect API key provided: {KEY} or sk-test-****cdef.\nSee\nbelow.")]
    with pytest.raises(ModelError) as caught:
        model.reply(HELLO, TOOLS)
    assert (len(server.requests), time.slept) == (1, [])
    message = str(caught.value)
    assert message.startswith("openai/test-model: ") and "Incorrect API key provided: [key] or [key]" in message
    assert "\n" not in message and KEY not in message and "cdef" not in message


@pytest.mark.parametrize("body", [b"<html>not an API</html>", b"", b"{}", b'{"choices": []}', b'{"choices": [{}]}'])
def test_a_garbage_body_ends_in_a_model_error(server: Server, model: LiteLLM, body: bytes) -> None:
    server.answers = [Answer(body=body) for _ in range(ATTEMPTS)]
    with pytest.raises(ModelError, match=r"^openai/test-model: .+"):
        model.reply(HELLO, TOOLS)


def test_a_conversation_that_is_too_long(server: Server, model: LiteLLM, time: Time) -> None:
    answer = failure(400, "This model's maximum context length is 32768 tokens.")
    answer.body["error"]["code"] = "context_length_exceeded"
    server.answers = [answer]
    with pytest.raises(ContextOverflowError):
        model.reply(HELLO, TOOLS)
    assert time.slept == []


def test_an_empty_reply_and_a_refusal(server: Server, model: LiteLLM) -> None:
    refused = reply(None)
    refused.body["choices"][0]["message"]["refusal"] = "I cannot."
    server.answers = [reply(None), refused]
    empty = model.reply(HELLO, TOOLS)
    assert (empty.text, empty.tool_calls) == ("", ())
    turn = model.reply(HELLO, TOOLS)
    assert (turn.text, turn.stop) == ("I cannot.", "refusal")


def test_no_connection(time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with pytest.raises(ModelError):
        LiteLLM("openai/test-model", api_base=address, sleep=time.sleep, clock=time.clock).reply(HELLO, TOOLS)
    assert len(time.slept) == ATTEMPTS - 1


@pytest.mark.parametrize("variable", ["LITELLM_API_BASE", "OPENAI_API_BASE"])
def test_the_address_may_come_from_the_environment(
    server: Server, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv(variable, server.url)
    server.answers = [reply()]
    assert make("litellm:openai/test-model").reply(HELLO, []).text == "hi"
    assert "tools" not in server.requests[0]


def test_prices(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert not LiteLLM("openai/test-model").priced()
    assert not LiteLLM("gemini/not-a-model").priced()  # LiteLLM itself would answer 0.0
    known = LiteLLM("openai/gpt-4o", api_base=server.url)
    assert known.priced()
    server.answers = [reply(), reply(prompt_tokens_details={"cached_tokens": 100})]
    first, cached = (known.reply(HELLO, TOOLS).cost_usd for _ in range(2))
    assert first and cached and first > cached > 0.0


def test_gemini_gets_its_thought_signatures_back(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "AIza-test-key-0123456789")
    part = {"functionCall": {"name": "compile", "args": {}}, "thoughtSignature": "c2lnbmVk"}
    text = {"text": "fine"}
    server.answers = [
        Answer(
            body={
                "candidates": [{"content": {"role": "model", "parts": [p]}, "finishReason": "STOP"}],
                "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 2, "totalTokenCount": 12},
            }
        )
        for p in (part, text)
    ]
    gemini = LiteLLM("gemini/gemini-3-pro-preview", api_base=server.url)
    turn = gemini.reply(HELLO, TOOLS)
    resumed = Turn.model_validate_json(turn.model_dump_json())
    (call,) = resumed.tool_calls
    spoken = Message(role="assistant", tool_calls=resumed.tool_calls, opaque=resumed.opaque)
    gemini.reply((*HELLO, spoken, Message(role="tool", text="built", call_id=call.id, tool="compile")), TOOLS)
    assert "c2lnbmVk" in json.dumps(server.requests[1]["contents"])
    assert TOOLS[0]["parameters"] == {"type": "object", "properties": {}}, "LiteLLM edits what it is given"


def test_anthropic_is_told_what_to_cache(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    usage = {"input_tokens": 5, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 10, "output_tokens": 2}
    content = [{"type": "text", "text": "hi"}]
    body = {"id": "x", "type": "message", "role": "assistant", "model": "m", "content": content, "usage": usage}
    server.answers = [Answer(body={**body, "stop_reason": "end_turn"})]
    turn = LiteLLM("anthropic/claude-test", api_base=server.url.removesuffix("/v1")).reply(HELLO, TOOLS)
    assert turn.usage == Usage(input_tokens=105, cached_tokens=90, cache_write_tokens=10, output_tokens=2)
    (request,) = server.requests
    marked = [request["system"][-1], request["messages"][-1]["content"][-1]]
    assert [block["cache_control"] for block in marked] == [{"type": "ephemeral"}] * 2


@pytest.mark.parametrize("name", ["", "gpt-4o", "openai/", "/gpt-4o", "replay", "litellm:", "litellm:gpt-4o"])
def test_what_is_not_a_model_name(name: str) -> None:
    with pytest.raises(UsageError, match="write PROVIDER/MODEL"):
        make(name)


def test_an_unknown_provider() -> None:
    with pytest.raises(UsageError, match="'opnai' is not a provider"):
        make("opnai/gpt-4o")


def test_watching_and_effort(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("LITELLM_API_BASE", server.url)
    seen: list[str] = []
    server.answers = [reply("hi")]
    make("litellm:openai/gpt-5?effort=low", on_text=lambda text, thought: seen.append(text)).reply(HELLO, TOOLS)
    assert seen == ["hi"]
    assert server.requests[0]["reasoning_effort"] == "low"


def test_our_own_price_comes_first(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(prices, "known", lambda provider, model: (provider, model) == ("openai", "gpt-4o"))
    monkeypatch.setattr(prices, "cost_usd", lambda provider, model, usage: 0.25)
    model = LiteLLM("openai/gpt-4o", api_base=server.url)
    server.answers = [reply()]
    assert model.priced() and model.reply(HELLO, TOOLS).cost_usd == 0.25


@pytest.mark.parametrize("name", ["openai/gpt-5?effort=", "openai/gpt-5?temperature=1", "openai/?effort=high"])
def test_what_is_not_an_option(name: str) -> None:
    with pytest.raises(UsageError):
        make(name)


def test_no_event_loop_is_left_behind(server: Server, model: LiteLLM) -> None:
    asyncio.set_event_loop_policy(None)  # as in a process that has had no loop yet
    server.answers = [reply()]
    model.reply(HELLO, [])
    with pytest.raises(RuntimeError, match="no current event loop"):
        asyncio.get_event_loop()


def test_without_litellm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "litellm", None)
    with pytest.raises(UsageError, match=r"pip install 'ringsmith\[models\]'"):
        make("mistral/large")
