"""The OpenAI adapter: the real SDK against a local server that speaks the Responses API."""

from __future__ import annotations

from typing import Any

import pytest

from agent.models import make
from agent.models.base import ContextOverflowError, ModelError
from agent.models.calling import ATTEMPTS
from agent.models.openai import OpenAI
from harness.errors import UsageError
from runs.messages import Message, ToolCall, Turn, Usage
from tests.agent.provider import HELLO, KEY, TOOLS, Answer, Server, Time

REASONING = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "sealed"}
USAGE = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 8},
    "output_tokens": 20,
    "output_tokens_details": {"reasoning_tokens": 7},
    "total_tokens": 120,
}


def said(text: str, kind: str = "output_text") -> dict[str, Any]:
    part = (
        {"type": "refusal", "refusal": text} if kind == "refusal" else {"type": kind, "text": text, "annotations": []}
    )
    return {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}


def called(number: int, name: str, arguments: str) -> dict[str, Any]:
    call = {"id": f"fc_{number}", "type": "function_call", "call_id": f"call_{number}", "status": "completed"}
    return {**call, "name": name, "arguments": arguments}


def response(*output: dict[str, Any], status: str = "completed", **changed: Any) -> dict[str, Any]:
    fixed = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "parallel_tool_calls": True}
    sent = {"tool_choice": "auto", "tools": [{"type": "function", "name": "echo"}], "instructions": None}
    return {**fixed, **sent, "status": status, "output": list(output), "usage": USAGE, **changed}


def reply(*output: dict[str, Any], deltas: tuple[str, ...] = (), status: str = "completed", **changed: Any) -> Answer:
    delta = {"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0, "content_index": 0}
    return Answer(
        events=[
            {"type": "response.created", "response": response(status="in_progress"), "sequence_number": 0},
            *({**delta, "delta": text, "logprobs": [], "sequence_number": 1} for text in deltas),
            {
                "type": f"response.{status}",
                "response": response(*output, status=status, **changed),
                "sequence_number": 2,
            },
        ]
    )


def failure(status: int, message: str = "no", code: str = "c", **headers: str) -> Answer:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, {"error": {"message": message, "type": "t", "code": code, "param": None}}, sent)


@pytest.fixture
def model(server: Server, time: Time, monkeypatch: pytest.MonkeyPatch) -> OpenAI:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    return OpenAI("gpt-test", base_url=server.url, sleep=time.sleep, clock=time.clock)


def test_two_parallel_calls_and_reasoning_go_back_as_they_came(server: Server, model: OpenAI) -> None:
    server.answers = [
        reply(REASONING, said("both"), called(1, "compile", "{}"), called(2, "read", '{"page": "x"}')),
        reply(said("done")),
    ]
    turn = model.reply(HELLO, TOOLS)
    assert turn.text == "both"
    assert turn.tool_calls == (
        ToolCall(id="call_1", name="compile", arguments="{}"),
        ToolCall(id="call_2", name="read", arguments='{"page": "x"}'),
    )
    assert turn.usage == Usage(
        input_tokens=100, cached_tokens=64, cache_write_tokens=8, output_tokens=20, reasoning_tokens=7
    )
    assert (turn.stop, turn.cost_usd, turn.waited_s) == ("completed", None, 0.0)
    assert turn.raw and turn.raw["id"] == "resp_1" and "tools" not in turn.raw
    assert KEY not in turn.model_dump_json()

    kept = Turn.model_validate_json(turn.model_dump_json())  # as after a resume
    conversation = (
        *HELLO,
        Message(role="assistant", text=kept.text, tool_calls=kept.tool_calls, opaque=kept.opaque),
        Message(role="tool", text="built", call_id="call_1", tool="compile"),
        Message(role="tool", text="half \ud83d", call_id="call_2", tool="read"),
    )
    assert model.reply(conversation, TOOLS).text == "done"

    first, second = server.requests
    assert first["input"] == [{"role": "system", "content": "be good"}, {"role": "user", "content": "hello"}]
    assert first["tools"][0] == {
        "type": "function",
        "name": "compile",
        "description": "Build.",
        "parameters": {"type": "object", "properties": {}},
        "strict": False,
    }
    assert (first["model"], first["store"], first["stream"]) == ("gpt-test", False, True)
    assert (first["include"], first["parallel_tool_calls"]) == (["reasoning.encrypted_content"], True)
    assert "reasoning" not in first
    assert second["input"] == [
        *first["input"],
        REASONING,
        said("both"),
        called(1, "compile", "{}"),
        called(2, "read", '{"page": "x"}'),
        {"type": "function_call_output", "call_id": "call_1", "output": "built"},
        {"type": "function_call_output", "call_id": "call_2", "output": "half ?"},
    ]
    assert first["prompt_cache_key"] == second["prompt_cache_key"]
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"


def test_a_conversation_of_another_provider(server: Server, model: OpenAI) -> None:
    server.answers = [reply()]
    call = ToolCall(id="c1", name="compile", arguments="{}")
    model.reply((*HELLO, Message(role="assistant", text="so", tool_calls=(call,), opaque={"other": 1})), [])
    assert server.requests[0]["input"][2:] == [
        {"role": "assistant", "content": "so"},
        {"type": "function_call", "call_id": "c1", "name": "compile", "arguments": "{}"},
    ]
    assert "tools" not in server.requests[0]


def test_a_person_can_watch(server: Server, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    seen: list[str] = []
    server.answers = [reply(said("hello"), deltas=("hel", "lo"))]
    OpenAI("gpt-test", base_url=server.url, on_text=lambda text, thought: seen.append(text)).reply(HELLO, TOOLS)
    assert seen == ["hel", "lo"]


def test_effort_and_models_that_do_not_reason(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    server.answers = [reply(), reply()]
    make("openai/gpt-5?effort=high").reply(HELLO, TOOLS)
    make("openai/gpt-4o").reply(HELLO, TOOLS)
    assert server.requests[0]["reasoning"] == {"effort": "high"}
    assert (server.requests[0]["model"], server.requests[1]["model"]) == ("gpt-5", "gpt-4o")
    assert "include" not in server.requests[1]


def test_rate_limits(server: Server, model: OpenAI, time: Time) -> None:
    server.answers = [failure(429, Retry_After="7"), failure(429, retry_after_ms="1500"), reply(said("hi"))]
    turn = model.reply(HELLO, TOOLS)
    assert turn.text == "hi"
    assert 7 <= time.slept[0] < 8 and 1.5 <= time.slept[1] < 2.5
    assert turn.waited_s == pytest.approx(sum(time.slept))
    assert len(server.requests) == 3, "no retries but ours"


@pytest.mark.parametrize("status", [408, 409, 500, 502, 503])
def test_what_is_tried_again(server: Server, model: OpenAI, time: Time, status: int) -> None:
    server.answers = [failure(status), reply(said("hi"))]
    assert model.reply(HELLO, TOOLS).text == "hi"
    assert len(time.slept) == 1


@pytest.mark.parametrize(
    ("answer", "names"),
    [
        (failure(401, f"Incorrect API key provided: {KEY} or sk-****cdef."), r"provided: \[key\] or \[key\]"),
        (failure(400, "bad\nrequest"), "bad"),
        (failure(429, "You exceeded your current quota", "insufficient_quota"), "quota"),
        (failure(429, "tomorrow", Retry_After="86400"), "tomorrow"),
        (failure(500, "never", x_should_retry="false"), "never"),
    ],
)
def test_what_is_not(server: Server, model: OpenAI, time: Time, answer: Answer, names: str) -> None:
    server.answers = [answer]
    with pytest.raises(ModelError, match=names) as caught:
        model.reply(HELLO, TOOLS)
    message = str(caught.value)
    assert message.startswith("openai/gpt-test: ") and "\n" not in message
    assert KEY not in message and "cdef" not in message
    assert (len(server.requests), time.slept) == (1, [])


@pytest.mark.parametrize(
    "cut",
    [
        Answer(events=[{"type": "response.created", "response": response(status="in_progress")}], cut=True),
        Answer(events=[{"type": "response.created", "response": response(status="in_progress")}]),
        Answer(events=[b"event: response.created\ndata: {half\n\n"]),
        Answer(events=[]),
        Answer(body=b"<html>not an API</html>"),
    ],
    ids=["broken", "ended", "garbled", "empty", "html"],
)
def test_a_cut_stream(server: Server, model: OpenAI, time: Time, cut: Answer) -> None:
    server.answers = [cut, reply(said("hi"))]
    assert model.reply(HELLO, TOOLS).text == "hi"
    assert len(time.slept) == 1


def test_a_connection_that_breaks_after_the_reply(server: Server, model: OpenAI) -> None:
    whole = reply(said("hi"))
    whole.cut = True
    server.answers = [whole]
    assert model.reply(HELLO, TOOLS).text == "hi"


@pytest.mark.parametrize(
    "event",
    [
        {"type": "error", "code": "server_error", "message": "oops", "param": None, "sequence_number": 1},
        {"type": "error", "error": {"code": "server_is_overloaded", "message": "oops", "type": "t"}},
        {
            "type": "response.failed",
            "response": response(status="failed", error={"code": "server_error", "message": "oops"}),
        },
    ],
)
def test_a_failure_inside_the_stream(server: Server, model: OpenAI, time: Time, event: dict[str, Any]) -> None:
    server.answers = [Answer(events=[event]), reply(said("hi"))]
    assert model.reply(HELLO, TOOLS).text == "hi"
    assert len(time.slept) == 1


def test_a_rate_limit_inside_the_stream(server: Server, model: OpenAI, time: Time) -> None:
    error = {"code": "rate_limit_exceeded", "message": "Limit reached. Please try again in 11.5s. Visit ..."}
    failed = {"type": "response.failed", "response": response(status="failed", error=error)}
    server.answers = [Answer(events=[failed]), reply(said("hi"))]
    assert model.reply(HELLO, TOOLS).text == "hi"
    assert 11.5 <= time.slept[0] < 12.5


def test_a_prompt_that_is_not_allowed(server: Server, model: OpenAI, time: Time) -> None:
    error = {"code": "invalid_prompt", "message": "flagged"}
    failed = {"type": "response.failed", "response": response(status="failed", error=error)}
    server.answers = [Answer(events=[failed])]
    with pytest.raises(ModelError, match="invalid_prompt: flagged"):
        model.reply(HELLO, TOOLS)
    assert time.slept == []


def test_a_timeout(server: Server, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    model = OpenAI("gpt-test", base_url=server.url, timeout_s=0.2, sleep=time.sleep, clock=time.clock)
    server.answers = [Answer(silent=True), reply(said("hi"))]
    assert model.reply(HELLO, TOOLS).text == "hi"
    assert len(time.slept) == 1


def test_no_server(time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    model = OpenAI("gpt-test", base_url="http://127.0.0.1:9/v1", sleep=time.sleep, clock=time.clock)
    with pytest.raises(ModelError, match=r"^openai/gpt-test: APIConnectionError: .* \(ConnectError: .*refused\)$"):
        model.reply(HELLO, TOOLS)
    assert len(time.slept) == ATTEMPTS - 1


def test_malformed_arguments_pass_through(server: Server, model: OpenAI) -> None:
    server.answers = [reply(called(1, "read", '{"page": "x')), reply()]
    turn = model.reply(HELLO, TOOLS)
    assert turn.tool_calls[0].arguments == '{"page": "x'
    model.reply((*HELLO, Message(role="assistant", tool_calls=turn.tool_calls, opaque=turn.opaque)), TOOLS)
    assert server.requests[1]["input"][2]["arguments"] == '{"page": "x'


def test_a_refusal(server: Server, model: OpenAI) -> None:
    server.answers = [reply(said("I cannot.", "refusal"))]
    turn = model.reply(HELLO, TOOLS)
    assert (turn.text, turn.tool_calls, turn.stop) == ("I cannot.", (), "refusal")


def test_an_empty_and_a_cut_off_reply(server: Server, model: OpenAI) -> None:
    server.answers = [
        reply(),
        reply(REASONING, status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
        reply(),
    ]
    empty = model.reply(HELLO, TOOLS)
    assert (empty.text, empty.tool_calls, empty.stop) == ("", (), "completed")
    only_thought = model.reply(HELLO, TOOLS)
    assert (only_thought.text, only_thought.stop) == ("", "max_output_tokens")
    spoken = [Message(role="assistant", opaque=turn.opaque) for turn in (empty, only_thought)]
    model.reply((*HELLO, *spoken, Message(role="user", text="go on")), TOOLS)
    assert server.requests[2]["input"][2:] == [{"role": "user", "content": "go on"}]


@pytest.mark.parametrize(
    "answer",
    [
        failure(400, "Your input exceeds the context window of this model.", "context_length_exceeded"),
        Answer(events=[{"type": "error", "code": "context_length_exceeded", "message": "too long", "param": "input"}]),
        failure(400, "This model's maximum context length is 32768 tokens."),
        failure(413, "Request too large"),
    ],
)
def test_a_conversation_that_is_too_long(server: Server, model: OpenAI, time: Time, answer: Answer) -> None:
    server.answers = [answer]
    with pytest.raises(ContextOverflowError):
        model.reply(HELLO, TOOLS)
    assert time.slept == []


def test_half_an_emoji_is_replaced(server: Server, model: OpenAI) -> None:
    server.answers = [reply(said("half \ud83d"))]
    turn = model.reply((Message(role="user", text="half \ud83d"),), TOOLS)
    assert turn.text == server.requests[0]["input"][0]["content"] == "half ?"
    assert turn.model_dump_json()


def test_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_ADMIN_KEY", raising=False)
    with pytest.raises(UsageError, match="set OPENAI_API_KEY"):
        make("openai/gpt-5")
