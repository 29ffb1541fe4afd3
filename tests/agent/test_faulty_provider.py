"""Whole runs with OpenAI's real SDK against a server that fails three times in ten: none lost, no step doubled."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from agent.loop import run_loop
from agent.models.openai import OpenAI
from runs.events import Budget, ModelReplied, RunFinished, ToolReturned
from runs.record import Record
from tests.agent.provider import KEY, Answer, Server, Time
from tests.agent.test_loop import MESSAGES, FakeSession, Toolbox, speed
from tests.agent.test_openai import called, failure, reply, said
from tests.runs.factories import config

RUNS, FAULTS = 50, 0.3
SCRIPT = (
    (("write", '{"source": "a"}'), ("bench", "{}")),
    (("write", '{"source": "b"}'),),
    (("bench", "{}"),),
    (("submit", "{}"),),
)


class Faulty(list):
    """The script's next reply by what the conversation holds, or a fault."""

    def __init__(self, server: Server, chance: random.Random) -> None:
        self.server, self.chance, self.faults = server, chance, 0

    def pop(self, at: int = -1) -> Answer:
        if self.chance.random() < FAULTS:
            self.faults += 1
            return self.chance.choice(
                (
                    failure(429, retry_after="2"), failure(500), failure(503), failure(529),
                    Answer(events=reply(said("lost")).events[:1], cut=True), Answer(events=[b"data: {half"]),
                )
            )  # fmt: skip
        conversation = self.server.requests[-1]["input"]
        made = sum(item.get("type") == "function_call" for item in conversation)
        for step, calls in enumerate(SCRIPT):
            if made == sum(map(len, SCRIPT[:step])):
                return reply(*(called(made + i, name, given) for i, (name, given) in enumerate(calls)))
        raise AssertionError(f"asked after {made} calls")


def test_fifty_runs(server: Server, time: Time, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server.answers = faulty = Faulty(server, random.Random(7))
    for number in range(RUNS):
        model = OpenAI("gpt-test", base_url=server.url, sleep=time.sleep, clock=time.clock)
        record = Record.create(tmp_path, f"run-{number}")
        session = FakeSession({"a": [speed("a", 1.1)], "b": [speed("b", 1.4)]})
        run_loop(
            config(budget=Budget(steps=None)), model, session, record, MESSAGES, lambda event: None,
            prompts_hash="h", toolbox=Toolbox(), clock=time.clock,
        )  # fmt: skip
        record.close()
        events = list(record.events())
        assert [e.step for e in events if isinstance(e, ModelReplied)] == [1, 2, 3, 4]
        calls = [(e.call.name, e.call.arguments) for e in events if isinstance(e, ToolReturned)]
        assert calls == [call for step in SCRIPT for call in step]
        assert isinstance(events[-1], RunFinished) and events[-1].reason == "submitted"
        # Waiting for the provider is no working time.
        assert events[-1].spend.wall_s == pytest.approx(0, abs=1e-6)
    assert faulty.faults > RUNS
    assert len(server.requests) == RUNS * len(SCRIPT) + faulty.faults
