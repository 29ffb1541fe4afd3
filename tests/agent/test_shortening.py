"""Old results are cut seldom and at once: what is sent shrinks; between cuts each request begins as the last did."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from agent.conversation import Conversation
from agent.loop import resume_loop, run_loop
from agent.models import anthropic, google, litellm, openai
from agent.shortening import KEPT_STEPS, shortened
from runs.events import Budget, ContextReset, ModelReplied, ResultsShortened
from runs.messages import Message, Usage
from runs.record import Record
from runs.requests import last_request, request_of
from tests.agent.test_loop import MESSAGES, SUBMIT, FakeSession, Toolbox, say
from tests.runs.factories import config
from tools.base import ToolResult

STEPS, LIMIT = 40, 24_000
TEXT = "".join(f"line {n} of what was found\n" for n in range(100))


class Talkative(Toolbox):
    """Two results of some 600 tokens a step."""

    def call(self, session: Any, name: str, arguments: str) -> ToolResult:
        return ToolResult(f"{arguments}\n{TEXT}", submitted=name == "submit")


class Counting:
    """Four characters are a token; what a request shares with the one before is cached, as providers do it."""

    name = "none"

    def __init__(self, heard: int = 0, before: str = "") -> None:
        self.number, self.before = heard, before
        self.usage: list[Usage] = []

    def priced(self) -> bool:
        return True

    def reply(self, messages: Any, tools: Any) -> Any:
        items = [item for message in messages for item in openai._to_items(message)]
        sent = json.dumps(items)
        common = next((i for i, (a, b) in enumerate(zip(self.before, sent, strict=False)) if a != b), len(self.before))
        self.before, self.number = sent, self.number + 1
        self.usage.append(Usage(input_tokens=len(sent) // 4, cached_tokens=common // 4, output_tokens=10))
        calls = [("read", f'{{"what": "{self.number}"}}'), ("bench", "{}")] if self.number < STEPS else [SUBMIT]
        turn = say(*calls, usage=self.usage[-1], request={"input": items})
        made = tuple(call.model_copy(update={"id": f"c{self.number}_{n}"}) for n, call in enumerate(turn.tool_calls))
        sealed = {"type": "reasoning", "id": f"rs_{self.number}", "encrypted_content": "sealed"}
        named = [{"type": "function_call", "call_id": call.id, "name": call.name} for call in made]
        return turn.model_copy(update={"tool_calls": made, "opaque": {"openai": [sealed, *named]}})


@pytest.fixture
def played(tmp_path):
    record, model = Record.create(tmp_path, "r"), Counting()
    run_loop(
        config(context_tokens=LIMIT, budget=Budget(steps=None)), model, FakeSession(), record, MESSAGES,
        lambda event: None, prompts_hash="h", toolbox=Talkative(),
    )  # fmt: skip
    record.close()
    return record, model, list(record.events())


def test_the_input_shrinks_and_the_cache_is_lost_at_the_cuts_only(played):
    _, model, events = played
    replies = [event for event in events if isinstance(event, ModelReplied)]
    assert len(replies) == STEPS and not any(isinstance(event, ContextReset) for event in events)
    # The reply that was asked for after each cut, counted from 0.
    cuts = [
        sum(isinstance(e, ModelReplied) for e in events[:i]) for i, e in enumerate(events)
        if isinstance(e, ResultsShortened)
    ]  # fmt: skip
    assert 2 <= len(cuts) <= 5
    sent = [usage.input_tokens for usage in model.usage]
    whole = _whole(events)
    assert max(sent) < LIMIT < whole / 2
    for cut, (after, end) in zip(cuts, pairwise([*cuts, STEPS]), strict=True):
        assert sent[cut] < sent[cut - 1] / 1.5
        base = 0 if cut == cuts[0] else sent[max(c for c in cuts if c < cut)]
        assert sent[cut - 1] - base > LIMIT / 2 >= sent[cut - 2] - base, "at the first reply that had grown so much"
        for step in range(after + 1, end):
            # All of the former request but its closing bracket.
            assert model.usage[step].cached_tokens >= sent[step - 1] - 1
    cached = sum(usage.cached_tokens for usage in model.usage) / sum(sent)
    assert cached > 0.8


def _whole(events):
    """Tokens of the last request if nothing had been shortened."""
    talk = Conversation(event for event in events if not isinstance(event, ResultsShortened))
    return len(json.dumps([item for message in talk.messages for item in openai._to_items(message)])) // 4


def test_recent_results_reasoning_and_pairs_stay(played):
    _, _, events = played
    last = max(i for i, event in enumerate(events) if isinstance(event, ResultsShortened))
    talk, before = Conversation(events[: last + 1]), Conversation(events[:last])
    assert len(talk.messages) == len(before.messages)
    for new, old in zip(talk.messages, before.messages, strict=True):
        assert new == old or (new.role == "tool" and new.model_copy(update={"text": old.text}) == old)
    results = [message for message in talk.messages if message.role == "tool"]
    cut = ["[shortened: " in message.text for message in results]
    assert cut == sorted(cut, reverse=True) and cut.count(False) == 2 * KEPT_STEPS
    assert results[0].text.startswith('{"what": "1"}\nline 0') and "call read again" in results[0].text
    assert "attempt N" in results[1].text and results[1].text.count("\n") == 3

    items = [item for message in talk.messages for item in openai._to_items(message)]
    calls = [item["call_id"] for item in items if item.get("type") == "function_call"]
    assert calls == [item["call_id"] for item in items if item.get("type") == "function_call_output"]
    assert sum(item.get("type") == "reasoning" for item in items) == talk.replies
    blocks = [block for message in anthropic._to_messages(talk.messages) for block in message["content"]]
    assert [b["id"] for b in blocks if b["type"] == "tool_use"] == calls
    assert [b["tool_use_id"] for b in blocks if b["type"] == "tool_result"] == calls
    parts = [part for content in google._contents(talk.messages) for part in content.parts]
    assert [p.function_call.id for p in parts if p.function_call] == calls
    assert [p.function_response.id for p in parts if p.function_response] == calls
    chats = [litellm._to_chat(message) for message in talk.messages]
    assert [chat["tool_call_id"] for chat in chats if chat["role"] == "tool"] == calls


def test_a_run_that_is_resumed_goes_on_with_the_same_conversation(played, tmp_path):
    record, model, events = played
    at = max(i for i, event in enumerate(events) if isinstance(event, ResultsShortened))
    heard = sum(isinstance(event, ModelReplied) for event in events[:at])
    path = record.path / "events.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[: at + 1]))
    again = Counting(heard, json.dumps(last_request(record.events())["input"]))
    resume_loop(again, FakeSession(), record, lambda event: None, toolbox=Talkative())
    record.close()
    after = list(record.events())
    assert again.usage == model.usage[heard:]
    assert [e.through for e in after if isinstance(e, ResultsShortened)] == [
        e.through for e in events if isinstance(e, ResultsShortened)
    ]
    assert request_of(after, STEPS) == request_of(events, STEPS)


def test_a_short_result_stays():
    for text in ("built", "x" * 450, "\n".join(["line"] * 20)):
        result = Message(role="tool", text=text, call_id="c", tool="compile")
        assert shortened(result) is result
    once = shortened(Message(role="tool", text=TEXT, call_id="c", tool="compile"))
    assert shortened(once) is once
