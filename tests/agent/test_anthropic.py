"""The Anthropic adapter: the real SDK against a local server that speaks the Messages API."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent import prices
from agent.models import make
from agent.models.anthropic import Anthropic
from agent.models.base import ContextOverflowError, ModelError
from harness.errors import UsageError
from runs.messages import Message, ToolCall, Turn, Usage
from tests.agent.provider import HELLO, KEY, TOOLS, Answer, Server, Time

THINKING = {"type": "thinking", "thinking": "first this, then that", "signature": "c2lnbmVk"}
REDACTED = {"type": "redacted_thinking", "data": "c2VhbGVk"}
USAGE = {
    "input_tokens": 5,
    "cache_read_input_tokens": 90,
    "cache_creation_input_tokens": 10,
    "cache_creation": {"ephemeral_5m_input_tokens": 4, "ephemeral_1h_input_tokens": 6},
    "output_tokens": 1,
}
MARK = {"type": "ephemeral", "ttl": "5m"}


def text(*deltas: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": ""}, *({"type": "text_delta", "text": delta} for delta in deltas)]


def use(number: int, name: str, *deltas: str) -> list[dict[str, Any]]:
    start = {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": {}}
    return [start, *({"type": "input_json_delta", "partial_json": delta} for delta in deltas)]


THOUGHT = [
    {"type": "thinking", "thinking": "", "signature": ""},
    {"type": "thinking_delta", "thinking": "first this, "},
    {"type": "thinking_delta", "thinking": "then that"},
    {"type": "signature_delta", "signature": "c2lnbmVk"},
]


def reply(*blocks: list[dict[str, Any]], stop: str = "end_turn", **delta: Any) -> Answer:
    """Each block is its start followed by its deltas."""
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
    begun = {**message, "stop_reason": None, "stop_sequence": None, "usage": USAGE}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": begun}, {"type": "ping"}]
    for index, (start, *deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    usage = {"output_tokens": 20, "output_tokens_details": {"thinking_tokens": 7}}
    ended = {"stop_reason": stop, "stop_sequence": None, **delta}
    return Answer(events=[*events, {"type": "message_delta", "delta": ended, "usage": usage}, {"type": "message_stop"}])


def failure(status: int, message: str = "no", kind: str = "api_error", **headers: str) -> Answer:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, {"type": "error", "error": {"type": kind, "message": message}}, sent)


def spoken(turn: Turn) -> Message:
    """As the loop keeps it, and as it is after a resume."""
    turn = Turn.model_validate_json(turn.model_dump_json())
    return Message(role="assistant", text=turn.text, tool_calls=turn.tool_calls, opaque=turn.opaque)


@pytest.fixture
def model(server: Server, time: Time, monkeypatch: pytest.MonkeyPatch) -> Anthropic:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    return Anthropic("claude-test", base_url=server.address, sleep=time.sleep, clock=time.clock)


def test_two_parallel_calls_and_thinking_go_back_as_they_came(server: Server, model: Anthropic) -> None:
    server.answers = [
        reply(
            THOUGHT,
            [REDACTED],
            text("bo", "th"),
            use(1, "compile"),
            use(2, "read", '{"page"', ': "x"}'),
            stop="tool_use",
        ),
        reply(text("done")),
    ]
    turn = model.reply(HELLO, TOOLS)
    assert turn.text == "both"
    assert turn.tool_calls == (
        ToolCall(id="toolu_1", name="compile", arguments=""),
        ToolCall(id="toolu_2", name="read", arguments='{"page": "x"}'),
    )
    assert turn.usage == Usage(
        input_tokens=105, cached_tokens=90, cache_write_tokens=10, output_tokens=20, reasoning_tokens=7
    )
    assert (turn.stop, turn.cost_usd, turn.waited_s) == ("tool_use", None, 0.0)
    assert turn.raw and turn.raw["id"] == "msg_1" and turn.raw["content"][0] == THINKING
    assert KEY not in turn.model_dump_json()

    results = (
        Message(role="tool", text="built", call_id="toolu_1", tool="compile"),
        Message(role="tool", text="half \ud83d", call_id="toolu_2", tool="read"),
    )
    assert model.reply((*HELLO, spoken(turn), *results), TOOLS).text == "done"

    first, second = server.requests
    assert (first["model"], first["stream"], first["max_tokens"]) == ("claude-test", True, 128_000)
    assert first["thinking"] == {"type": "adaptive", "display": "summarized"}
    assert "output_config" not in first
    assert first["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "hello", "cache_control": MARK}]}
    ]
    assert second["messages"][1:] == [
        {
            "role": "assistant",
            "content": [
                THINKING,
                REDACTED,
                {"type": "text", "text": "both"},
                {"type": "tool_use", "id": "toolu_1", "name": "compile", "input": {}},
                {"type": "tool_use", "id": "toolu_2", "name": "read", "input": {"page": "x"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "built"},
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": "half ?", "cache_control": MARK},
            ],
        },
    ]
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"


def marks(request: dict[str, Any]) -> list[tuple[str, Any]]:
    """Where a request is marked for the cache, in the API's order."""
    blocks = [("tools", block) for block in request["tools"]] + [("system", block) for block in request["system"]]
    for number, message in enumerate(request["messages"]):
        blocks += [(f"message {number}", block) for block in message["content"]]
    return [(place, block["cache_control"]) for place, block in blocks if "cache_control" in block]


def test_cache_marks(server: Server, model: Anthropic, time: Time) -> None:
    conversation = list(HELLO)
    server.answers = [reply(use(number, "compile"), stop="tool_use") for number in range(4)]
    for number in range(4):
        conversation.append(spoken(model.reply(conversation, TOOLS)))
        conversation.append(Message(role="tool", text="built", call_id=f"toolu_{number}", tool="compile"))
        time.now += 30 if number < 2 else 250  # the third step takes nearly as long as the cache would last
    first, second, third, fourth = server.requests
    assert marks(first) == [("tools", MARK), ("system", MARK), ("message 0", MARK)]
    assert marks(second) == [("tools", MARK), ("system", MARK), ("message 0", MARK), ("message 2", MARK)]
    assert marks(third) == [("tools", MARK), ("system", MARK), ("message 2", MARK), ("message 4", MARK)]
    hour = {"type": "ephemeral", "ttl": "1h"}
    assert marks(fourth) == [("tools", hour), ("system", hour), ("message 4", hour), ("message 6", hour)]
    assert "cache_control" in first["tools"][1] and "cache_control" not in TOOLS[1]


def test_an_hour_in_the_cache_costs_more(server: Server, model: Anthropic, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(prices, "cost_usd", lambda *given, **named: asked.append((given, named)) or 0.5)
    server.answers = [reply(text("hi"))]
    turn = model.reply(HELLO, TOOLS)
    assert turn.cost_usd == 0.5
    assert asked == [(("anthropic", "claude-test", turn.usage), {"long_writes": 6})]


def test_a_person_can_watch(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.address)
    seen: list[tuple[str, bool]] = []
    server.answers = [reply(THOUGHT, text("hel", "lo"))]
    make("anthropic/claude-test?effort=max", on_text=lambda *piece: seen.append(piece)).reply(HELLO, [])
    assert seen == [("first this, ", True), ("then that", True), ("hel", False), ("lo", False)]
    assert server.requests[0]["output_config"] == {"effort": "max"}
    assert "tools" not in server.requests[0]


def test_older_models_have_a_budget_for_thinking(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    server.answers = [reply(text("hi"))]
    Anthropic("claude-haiku-4-5-20251001", base_url=server.address).reply(HELLO, TOOLS)
    (request,) = server.requests
    assert request["thinking"] == {"type": "enabled", "budget_tokens": 32_000}
    assert request["max_tokens"] == 64_000
    assert server.headers[0]["anthropic-beta"] == "interleaved-thinking-2025-05-14"


def test_a_conversation_of_another_provider(server: Server, model: Anthropic) -> None:
    server.answers = [reply()]
    call = ToolCall(id="c1", name="compile", arguments="{}")
    model.reply((*HELLO, Message(role="assistant", text=" ", tool_calls=(call,), opaque={"other": 1})), TOOLS)
    assert server.requests[0]["messages"][1:] == [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "compile", "input": {}}]}
    ]


def test_rate_limits(server: Server, model: Anthropic, time: Time) -> None:
    server.answers = [
        failure(429, kind="rate_limit_error", retry_after="7"),
        failure(529, kind="overloaded_error"),
        reply(text("hi")),
    ]
    turn = model.reply(HELLO, TOOLS)
    assert turn.text == "hi"
    assert 7 <= time.slept[0] < 8 and 2 <= time.slept[1] <= 4
    assert turn.waited_s == pytest.approx(sum(time.slept))
    assert len(server.requests) == 3, "no retries but ours"


@pytest.mark.parametrize("status", [408, 409, 500, 502, 503])
def test_what_is_tried_again(server: Server, model: Anthropic, time: Time, status: int) -> None:
    server.answers = [failure(status), reply(text("hi"))]
    assert model.reply(HELLO, TOOLS).text == "hi"
    assert len(time.slept) == 1


@pytest.mark.parametrize(
    ("answer", "names"),
    [
        (failure(401, f"invalid x-api-key {KEY}", "authentication_error"), r"x-api-key \[key\]"),
        (failure(400, "bad\nrequest", "invalid_request_error"), "bad"),
        (failure(429, "tomorrow", "rate_limit_error", retry_after="86400"), "tomorrow"),
        (failure(500, "never", x_should_retry="false"), "never"),
    ],
)
def test_what_is_not(server: Server, model: Anthropic, time: Time, answer: Answer, names: str) -> None:
    server.answers = [answer]
    with pytest.raises(ModelError, match=names) as caught:
        model.reply(HELLO, TOOLS)
    message = str(caught.value)
    assert message.startswith("anthropic/claude-test: ") and "\n" not in message and KEY not in message
    assert (len(server.requests), time.slept) == (1, [])


@pytest.mark.parametrize("kind", ["overloaded_error", "api_error", "rate_limit_error", "new_error"])
def test_a_failure_inside_the_stream(server: Server, model: Anthropic, time: Time, kind: str) -> None:
    begun = list(reply(text("half")).events or [])[:4]
    error = {"type": "error", "error": {"type": kind, "message": "oops"}}
    server.answers = [Answer(events=[*begun, error]), reply(text("hi"))]
    assert model.reply(HELLO, TOOLS).text == "hi"
    assert len(time.slept) == 1


@pytest.mark.parametrize("how", ["broken", "ended", "garbled", "empty", "html"])
def test_a_cut_stream(server: Server, model: Anthropic, time: Time, how: str) -> None:
    begun = list(reply(text("half"), use(1, "compile", '{"a')).events or [])[:8]
    cut = {
        "broken": Answer(events=begun, cut=True),
        "ended": Answer(events=begun),
        "garbled": Answer(events=[*begun, b"event: content_block_delta\ndata: {half\n\n"]),
        "empty": Answer(events=[]),
        "html": Answer(body=b"<html>not an API</html>"),
    }[how]
    server.answers = [cut, reply(text("hi"))]
    assert model.reply(HELLO, TOOLS).text == "hi"
    assert len(time.slept) == 1


def test_a_connection_that_breaks_after_the_reply(server: Server, model: Anthropic) -> None:
    whole = reply(text("hi"))
    whole.cut = True
    server.answers = [whole]
    assert model.reply(HELLO, TOOLS).text == "hi"


def test_a_timeout(server: Server, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    model = Anthropic("claude-test", base_url=server.address, timeout_s=0.2, sleep=time.sleep, clock=time.clock)
    server.answers = [Answer(silent=True), reply(text("hi"))]
    assert model.reply(HELLO, TOOLS).text == "hi"
    assert len(time.slept) == 1


def test_malformed_arguments(server: Server, model: Anthropic) -> None:
    server.answers = [reply(use(1, "read", '{"page": "x'), use(2, "read", "[1]"), stop="max_tokens"), reply()]
    turn = model.reply(HELLO, TOOLS)
    assert [call.arguments for call in turn.tool_calls] == ['{"page": "x', "[1]"]
    assert turn.stop == "max_tokens"
    model.reply((*HELLO, spoken(turn)), TOOLS)
    sent = server.requests[1]["messages"][1]["content"]
    assert [block["input"] for block in sent] == [{"INVALID_JSON": '{"page": "x'}, {"INVALID_JSON": "[1]"}]


def test_a_refusal_does_not_go_back(server: Server, model: Anthropic) -> None:
    details = {"type": "refusal", "category": "cyber", "explanation": "Not this."}
    server.answers = [reply(use(1, "read", '{"pa'), stop="refusal", stop_details=details), reply()]
    turn = model.reply(HELLO, TOOLS)
    assert (turn.text, turn.tool_calls, turn.stop) == ("Not this.", (), "refusal")
    model.reply((*HELLO, spoken(turn), Message(role="user", text="go on")), TOOLS)
    (message,) = server.requests[1]["messages"]
    assert [block["text"] for block in message["content"]] == ["hello", "go on"]


def test_an_empty_reply(server: Server, model: Anthropic) -> None:
    server.answers = [reply(), reply(THOUGHT, text("\n")), reply()]
    empty, blank = model.reply(HELLO, TOOLS), model.reply(HELLO, TOOLS)
    assert (empty.text, empty.tool_calls, empty.stop) == ("", (), "end_turn")
    model.reply((*HELLO, spoken(empty), spoken(blank), Message(role="user", text="go on")), TOOLS)
    assert len(server.requests[2]["messages"]) == 1


@pytest.mark.parametrize(
    "answer",
    [
        failure(400, "prompt is too long: 210000 tokens > 200000 maximum", "invalid_request_error"),
        failure(400, "input length and `max_tokens` exceed context limit: 189136 + 20000 > 200000"),
        failure(413, "Request exceeds the maximum size", "request_too_large"),
    ],
)
def test_a_conversation_that_is_too_long(server: Server, model: Anthropic, time: Time, answer: Answer) -> None:
    server.answers = [answer]
    with pytest.raises(ContextOverflowError):
        model.reply(HELLO, TOOLS)
    assert time.slept == []


def test_a_context_that_fills_up_while_it_writes(server: Server, model: Anthropic, time: Time) -> None:
    server.answers = [reply(text("so far"), use(1, "read", '{"pa'), stop="model_context_window_exceeded")]
    with pytest.raises(ContextOverflowError, match="filled the model's context") as caught:
        model.reply(HELLO, TOOLS)
    paid = caught.value.cut
    assert paid and (paid.text, paid.tool_calls, paid.usage.output_tokens) == ("so far", (), 20)
    assert [block["type"] for block in paid.opaque["anthropic"]] == ["text"]
    assert (len(server.requests), time.slept) == (1, [])


def test_half_an_emoji_is_replaced(server: Server, model: Anthropic) -> None:
    server.answers = [reply(text("half \ud83d"))]
    turn = model.reply((Message(role="user", text="half \ud83d"),), TOOLS)
    assert turn.text == "half ?" and "half ?" in json.dumps(server.requests[0]["messages"])
    assert turn.model_dump_json()


def test_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(UsageError, match="set ANTHROPIC_API_KEY"):
        make("anthropic/claude-test")
