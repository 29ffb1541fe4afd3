"""Limits that are reached in the middle of a step: the loop, the real tools and a real sandbox on the cpu platform."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from agent.cap import Cap
from agent.loop import run_loop
from agent.models.openai import OpenAI
from harness.evaluate import Sandbox
from harness.types import Limits
from problems import catalogue as problems
from runs.events import Budget, Event, RunConfig, ToolReturned
from runs.record import Record
from tests.agent.provider import KEY, Answer, Server
from tests.agent.test_loop import MESSAGES, Scripted, say
from tests.agent.test_openai import called, reply
from tests.runs.factories import config
from tools import catalogue
from tools.session import Session

RIGHT = """import torch.distributed as dist
def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    return out
"""
HANGS = RIGHT.replace("    return out", "    while True:\n        pass")
BENCH = ("run_benchmark", '{"timing": false}')
# So long that it is not them that end a call.
LIMITS = Limits(load_s=60, first_call_s=60, call_s=60)


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox("cpu", 2, LIMITS) as box:
        yield box


def session(sandbox: Sandbox, record: Record) -> Session:
    entry = problems.find(1)
    return Session(
        sandbox=sandbox,
        entry=entry,
        case=problems.select_case(entry, "tiny"),
        dtype="float32",
        backend="cpp",
        protocol="ringsmith",
        check="oracle",
        trials=2,
        traces_dir=record.path / "traces",
    )


def write(source: str) -> tuple[str, str]:
    return "write_candidate", json.dumps({"source": source})


class Clock:
    """Time that can be let pass at a moment of the test's own: nothing depends on how fast this machine is."""

    def __init__(self) -> None:
        self.passed = threading.Event()

    def __call__(self) -> float:
        return time.time() + (10_000 if self.passed.is_set() else 0)


@pytest.mark.parametrize(
    ("budget", "cap", "reason"),
    [
        (Budget(wall_s=5000), Cap(), "budget: wall_s"),
        (Budget(), Cap(wall_s=5000), "budget: sweep wall_s"),
        (Budget(), Cap(device_s=5000), "budget: sweep device_s"),
    ],
)
def test_an_evaluation_that_hangs(sandbox, tmp_path: Path, budget: Budget, cap: Cap, reason: str) -> None:
    """The best is graded by the sandbox that was interrupted, the hanging candidate gets no verdict."""
    clock, turns = Clock(), [say(write(RIGHT), BENCH), say(write(HANGS), BENCH, write("never"))]

    def on_event(event: Event) -> None:
        if isinstance(event, ToolReturned) and "while True" in event.call.arguments:
            if reason == "budget: sweep device_s":
                cap.limits = Budget(device_s=cap.spend.device_s + 3.0)
            else:
                threading.Timer(3.0, clock.passed.set).start()

    with Record.create(tmp_path, "r") as record:
        run = run_loop(
            _config(budget), Scripted(turns, checked=False), session(sandbox, record), record, MESSAGES, on_event,
            prompts_hash="h", toolbox=catalogue, clock=clock, cap=cap,
        )  # fmt: skip
        events = list(record.events())
    assert run.reason == reason
    assert [(attempt.number, attempt.verdict) for attempt in run.attempts] == [(1, None), (1, "passed"), (2, None)]
    right = run.attempts[0].candidate
    assert run.best and run.best.candidate == right
    assert run.official and run.official.passed and run.official.candidate == right
    ended = [event for event in events if isinstance(event, ToolReturned)][-1]
    assert "budget ended during this call" in ended.text and ended.evaluation is None
    if cap.limits.device_s is not None:
        assert ended.device_s >= 3.0, "what was used of devices is charged"


def test_a_request_that_thinks_too_long(server: Server, tmp_path: Path, sandbox, monkeypatch) -> None:
    """The stream is given up, what it had written counts, and the best is graded."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    clock, begun = Clock(), reply(deltas=(100 * "abcd",)).events[:2]
    server.answers = [
        reply(called(1, *write(RIGHT)), called(2, *BENCH)),
        Answer(events=begun, stalls=True),
    ]
    model = OpenAI("gpt-5", base_url=server.url, on_text=lambda text, thought: clock.passed.set())
    with Record.create(tmp_path, "r") as record:
        run = run_loop(
            _config(Budget(wall_s=5000)), model, session(sandbox, record), record, MESSAGES, lambda event: None,
            prompts_hash="h", toolbox=catalogue, clock=clock,
        )  # fmt: skip
    assert run.reason == "budget: wall_s"
    assert run.official and run.official.passed
    assert (run.spend.steps, len(server.requests)) == (2, 2)
    # The first reply's 120; then its input and visible output again with what tools said, and a hundred written.
    assert 120 + 113 + 100 < run.spend.tokens < 120 + 113 + 100 + 1000
    assert run.spend.usd > 0 and run.spend.usd_known


def _config(budget: Budget) -> RunConfig:
    changed: dict[str, Any] = {"case": "tiny", "trials": 2, "budget": budget}
    return config(**changed)
