"""What was sent is in the record, exactly, without keys, and without growing with the square of the steps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.loop import resume_loop, run_loop
from agent.models import make, redaction
from agent.models.anthropic import Anthropic
from agent.models.base import Model
from agent.models.litellm import LiteLLM
from agent.models.openai import OpenAI
from harness.errors import UsageError
from runs.events import Budget, ModelReplied
from runs.messages import Turn
from runs.record import Record
from runs.requests import difference, last_request, request_of, restored
from tests.agent import test_anthropic, test_google, test_litellm, test_openai
from tests.agent.provider import KEY, Server
from tests.agent.test_loop import MESSAGES, SUBMIT, FakeSession, Toolbox, say, write
from tests.runs.factories import config

pytestmark = pytest.mark.filterwarnings("ignore:Item '.*' on TypedDict class '.*' is using the `ReadOnly` qualifier")
SCRIPT = (("write", '{"source": "a"}'), ("write", '{"source": "\\ud83d é"}'), ("write", '{"source": "c"}'))


def looped(record: Record, model: Model, **changed: Any) -> None:
    run_loop(
        config(budget=Budget(steps=None), **changed), model, FakeSession(), record, MESSAGES, lambda event: None,
        prompts_hash="h", toolbox=Toolbox(),
    )  # fmt: skip


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    with Record.create(tmp_path, "r") as record:
        yield record


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, KEY)
    monkeypatch.setenv("GEMINI_API_KEY", test_google.KEY)
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)


def sent_is_kept(record: Record, requests: list[dict[str, Any]]) -> None:
    assert len(requests) == 4
    for step, body in enumerate(requests, start=1):
        assert request_of(record.events(), step) == body
    text = (record.path / "events.jsonl").read_text()
    assert KEY not in text and test_google.KEY not in text
    with pytest.raises(UsageError, match="no step 5"):
        request_of(record.events(), 5)


@pytest.mark.parametrize("provider", ["openai", "anthropic", "litellm"])
def test_each_request_comes_back_as_the_server_saw_it(provider: str, server: Server, record: Record) -> None:
    made = [(f"call_{number}", name, given) for number, (name, given) in enumerate((*SCRIPT, SUBMIT))]
    model: Model
    if provider == "openai":
        model = OpenAI("gpt-test", base_url=server.url, effort="high")
        calls = [test_openai.called(n, name, given) for n, (_, name, given) in enumerate(made)]
        server.answers = [test_openai.reply(test_openai.REASONING, call) for call in calls]
    elif provider == "anthropic":
        model = Anthropic("claude-test", base_url=server.address, effort="low")
        uses = [test_anthropic.use(n, name, given) for n, (_, name, given) in enumerate(made)]
        server.answers = [test_anthropic.reply(test_anthropic.THOUGHT, use, stop="tool_use") for use in uses]
    else:
        model = LiteLLM("openai/test-model", api_base=server.url)
        server.answers = [test_litellm.reply(None, [call]) for call in made]
    looped(record, model)
    sent_is_kept(record, server.requests)


def test_google_too(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    server = test_google.Server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", server.url)
    parts = [{"functionCall": {"name": n, "args": json.loads(a)}, "thoughtSignature": "c2ln"} for n, a in SCRIPT]
    parts.append({"functionCall": {"name": "submit", "args": {}}})
    server.answers = [test_google.Answer([test_google.chunk(part, finish="STOP")]) for part in parts]
    looped(record, make("google/gemini-test?effort=low"))
    server.shutdown()
    server.server_close()
    sent_is_kept(record, server.requests)


def test_keys_in_a_conversation_are_left_out(server: Server, record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "nothing-like-a-key")
    other = "AIzaSyA1234567890abcdefghijk"
    source = f"{KEY} nothing-like-a-key {other} fw_out sk_buf"
    calls = [("write", json.dumps({"source": source})), ("bench", "{}"), SUBMIT]
    server.answers = [test_openai.reply(test_openai.called(n, *call)) for n, call in enumerate(calls)]
    monkeypatch.setattr(Toolbox, "call", lambda self, session, name, given: _answer(name, source))
    looped(record, OpenAI("gpt-test", base_url=server.url))
    assert KEY in json.dumps(server.requests[-1])
    kept = json.dumps(request_of(record.events(), 3))
    assert kept.count("[key] [key] [key] fw_out sk_buf") == 3  # the call, its result, the result of the second call
    assert not any(secret in kept for secret in (KEY, "nothing-like-a-key", other))


def _answer(name: str, text: str) -> Any:
    from tools.base import ToolResult

    return ToolResult(text, submitted=name == "submit")


def test_what_only_looks_like_a_key_stays() -> None:
    plain = ["fw_pass", "hf_model_name", "sk_0", "-sk-abcdefghijklmnopqrstuvwx", "risk-" + "a" * 30, 3, None, {"pk": 1}]
    assert redaction.from_json(plain) == plain
    assert redaction.from_json({"a": ["x hf_" + "a" * 30]}) == {"a": ["x [key]"]}


def test_a_run_that_is_resumed_tells_its_requests_by_those_before(server: Server, record: Record) -> None:
    server.answers = [test_openai.reply(test_openai.called(n, *call)) for n, call in enumerate((*SCRIPT[:2], SUBMIT))]
    looped(record, OpenAI("gpt-test", base_url=server.url))
    record.close()
    events = record.path / "events.jsonl"
    lines = events.read_text().splitlines(keepends=True)
    events.write_text("".join(lines[:5]))  # both writes and what they returned
    server.answers = [test_openai.reply(test_openai.called(7, *SUBMIT))]
    model = OpenAI("gpt-test", base_url=server.url)
    resume_loop(model, FakeSession(), record, lambda event: None, toolbox=Toolbox())
    replied = [event for event in record.events() if isinstance(event, ModelReplied)]
    assert replied[-1].request and replied[-1].request.same["input"] == len(server.requests[1]["input"])
    assert request_of(record.events(), 3) == server.requests[-1] == last_request(record.events())


class Marked:
    """Sends what the Anthropic adapter would, cache marks included, to nobody."""

    name = "none"

    def __init__(self, steps: int) -> None:
        self.adapter = Anthropic("claude-test", base_url="http://127.0.0.1:9")
        self.left, self.sent = steps, 0

    def priced(self) -> bool:
        return True

    def reply(self, messages: Any, tools: Any) -> Turn:
        request = self.adapter._request(messages, tools)
        self.sent += len(json.dumps(request))
        self.left -= 1
        call = write(f"{self.left} {'y' * 2000}") if self.left else SUBMIT
        return say(call, request=request)


def test_the_record_of_200_steps_grows_with_the_steps_not_their_square(tmp_path: Path) -> None:
    sizes, sent = [], []
    for steps in (100, 200):
        with Record.create(tmp_path, f"r{steps}") as record:
            looped(record, model := Marked(steps))
            sizes.append((record.path / "events.jsonl").stat().st_size)
            sent.append(model.sent)
    assert sent[1] > 3.8 * sent[0] and sizes[1] < 2.1 * sizes[0]
    assert sizes[1] < sent[1] / 10
    assert request_of(record.events(), 200) == Anthropic("claude-test", base_url="http://x")._request(
        _conversation(record), Toolbox().schemas()
    )


def _conversation(record: Record) -> Any:
    from agent.conversation import Conversation

    events = list(record.events())
    replies = [i for i, event in enumerate(events) if isinstance(event, ModelReplied)]
    return Conversation(events[: replies[-1]]).messages


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({}, {"a": [1], "b": 2}),
        ({"a": [1, 2, 3], "b": 2}, {"a": [1, 2, 4, 5], "b": 2}),
        ({"a": [1, 2, 3], "b": 2}, {"a": [1], "c": {}}),
        ({"a": [1, 2]}, {"a": [3]}),
        ({"a": [1, 2]}, {"a": []}),
        ({"a": [1]}, {"a": "text"}),
        ({"a": "text", "b": None}, {"a": [1], "b": None}),
    ],
)
def test_a_difference_gives_the_request_back(before: dict[str, Any], now: dict[str, Any]) -> None:
    assert restored(before, difference(before, now)) == now
