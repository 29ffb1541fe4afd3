"""What each strategy says when, through the real loop with a scripted model."""

from __future__ import annotations

import pytest

from agent.loop import resume_loop, run_loop
from agent.strategies import make
from agent.strategies.phased import PLATEAU, STRUGGLE
from harness.errors import UsageError
from harness.types import Verdict
from runs.events import Budget, ContextReset, ToolReturned, UserMessage
from runs.record import Record
from tests.agent.test_loop import (
    BENCH,
    MESSAGES,
    SUBMIT,
    Clock,
    FakeSession,
    Scripted,
    Toolbox,
    say,
    speed,
    write,
    wrong,
)
from tests.runs.factories import candidate, config

WRONG = [f"w{i}" for i in range(STRUGGLE)]
SLOWER = [f"s{i}" for i in range(2 * PLATEAU)]
FAST, FASTER = "fast", "faster"
ANSWERS = {
    **{source: [wrong(source, Verdict.wrong_values)] for source in WRONG},
    **{source: [speed(source, 1.0)] for source in SLOWER},
    FAST: [speed(FAST, 1.5)],
    FASTER: [speed(FASTER, 1.8)],
}


def looped(tmp_path, strategy, turns, answers=ANSWERS):
    record, model, session = Record.create(tmp_path, strategy), Scripted(list(turns)), FakeSession(dict(answers))
    run = run_loop(
        config(strategy=strategy, budget=Budget(steps=None)), model, session, record, MESSAGES, lambda event: None,
        prompts_hash="h", toolbox=Toolbox(), clock=Clock(),
    )  # fmt: skip
    record.close()
    return run, model, record, session


def tried(*sources):
    return [say(write(source), BENCH) for source in sources]


def topics(record):
    return [event.topic for event in record.events() if isinstance(event, UserMessage | ContextReset)]


def test_first_correct_then_fast_then_another_mechanism_then_afresh(tmp_path):
    turns = tried(*WRONG, FAST, *SLOWER, FASTER, *SLOWER[:PLATEAU])
    run, model, record, _ = looped(tmp_path, "phased", [*turns, say(SUBMIT)])
    assert run.reason == "submitted" and run.best.candidate == candidate(FASTER).hash
    # A gain after the fresh start: what comes next is advice again, not another start.
    assert topics(record) == ["simplify", "fast", "plateau", "restart", "plateau"]
    said = [event.text for event in record.events() if isinstance(event, UserMessage)]
    assert f"{STRUGGLE} attempts and none is correct" in said[0]
    assert "attempt 7, 1.60x the reference" in said[1]
    assert f"{PLATEAU} measured revisions in a row are not faster than attempt 7" in said[2]
    assert "copy engine, TMA, SM loads and stores" in said[2] and "NVLS" not in said[2]
    (reset,) = (event for event in record.events() if isinstance(event, ContextReset))
    assert reset.reason == "strategy" and "look at the problem afresh" in reset.text and "fast" in reset.text
    restarted = next(seen for seen in model.seen if len(seen) == 3 and "afresh" in seen[-1].text)
    assert restarted[:2] == list(MESSAGES)


def test_a_resumed_run_is_led_on(tmp_path):
    turns = tried(FAST, *SLOWER)
    _, _, whole, _ = looped(tmp_path, "phased", turns)
    assert topics(whole) == ["fast", "plateau", "restart"]
    events = whole.path / "events.jsonl"
    lines = events.read_text(encoding="utf-8").splitlines(keepends=True)
    for kept in range(2, len(lines) - 1, 5):
        events.write_text("".join(lines[:kept]), encoding="utf-8")
        record = Record.open(whole.path)
        heard = sum('"kind": "model_replied"' in line for line in lines[:kept])
        written = [e.candidate for e in record.events() if isinstance(e, ToolReturned) and e.candidate]
        session = FakeSession(dict(ANSWERS))
        session.current = next((candidate(s) for s in ANSWERS if written and candidate(s).hash == written[-1]), None)
        resume_loop(Scripted(turns[heard:]), session, record, lambda event: None, toolbox=Toolbox(), clock=Clock())
        record.close()
        assert topics(record) == ["fast", "plateau", "restart"], kept


def test_the_plain_loop_says_nothing(tmp_path):
    _, _, record, _ = looped(tmp_path, "loop", tried(*WRONG, FAST, *SLOWER))
    assert topics(record) == []


class Offered(Scripted):
    """Keeps the names of the tools that it was offered."""

    def reply(self, messages, tools, bounds):
        self.seen.append([tool["name"] for tool in tools])
        return self.turns.pop(0)


class Renamed(Toolbox):
    """Its writing tool has the real one's name."""

    def schemas(self):
        return [schema | {"name": schema["name"].replace("write", "write_candidate")} for schema in super().schemas()]

    def call(self, session, name, arguments):
        return super().call(session, name.replace("write_candidate", "write"), arguments)


def test_one_shot_is_graded_without_having_been_run(tmp_path):
    record, session = Record.create(tmp_path, "single"), FakeSession(dict(ANSWERS))
    model = Offered([say(BENCH, ("write_candidate", write(FAST)[1])), say(SUBMIT)])
    run = run_loop(
        config(strategy="single"), model, session, record, MESSAGES, lambda event: None,
        prompts_hash="h", toolbox=Renamed(), clock=Clock(),
    )  # fmt: skip
    record.close()
    assert model.seen == [["write_candidate"]] and len(model.turns) == 1
    assert run.reason == "submitted" and run.official.passed and session.graded == [FAST]
    returned = [event for event in record.events() if isinstance(event, ToolReturned)]
    assert [event.ok for event in returned] == [False, True] and "not available" in returned[0].text


def test_names():
    with pytest.raises(UsageError, match="no strategy 'x'; there are single, loop, phased"):
        make("x")
