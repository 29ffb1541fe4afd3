"""A run led by an agent from outside: same tools, record, budget and end as in the loop."""

from __future__ import annotations

import os
import threading

import pytest

from agent import running
from agent.external import External
from agent.models.replay import Replay
from harness.errors import HarnessError, UsageError
from runs import control
from runs.control import Request
from runs.events import AgentCalled, Budget, PersonActed, RunFinished, Target, ToolReturned
from runs.fold import fold
from runs.record import Record
from tests.agent.test_loop import MESSAGES, Clock, FakeSession, Toolbox, speed, wrong
from tests.agent.test_resume import told
from tests.runs.factories import candidate, config

ANSWERS = {"a": [wrong("a")], "b": [speed("b", 1.5)], "c": [speed("c", 1.2)]}
CALLS = (
    ("write", {"source": "a"}),
    ("bench", {}),
    ("nonsense", {}),
    ("write", {"source": "b"}),
    ("bench", {}),
    ("submit", {}),
)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "POLL_S", 0.001)


def start(record, watch=lambda event: None, session=None, **changed):
    return External.start(
        config(model="external:tester", **changed), session or FakeSession(dict(ANSWERS)), record, MESSAGES, watch,
        prompts_hash="h", toolbox=Toolbox(), clock=Clock(),
    )  # fmt: skip


def resume(record, watch=lambda event: None):
    session = FakeSession(dict(ANSWERS))
    for event in record.events():
        if isinstance(event, ToolReturned) and event.candidate:
            session.current = next(candidate(s) for s in ANSWERS if candidate(s).hash == event.candidate)
    return External.resume(session, record, watch, toolbox=Toolbox(), clock=Clock())


@pytest.fixture
def record(tmp_path):
    with Record.create(tmp_path, "r") as record:
        yield record


def test_calls_are_recorded_counted_and_graded_at_the_end(record):
    session = FakeSession(dict(ANSWERS))
    with start(record, session=session) as agent:
        assert {schema["name"] for schema in agent.schemas()} == {"write", "bench", "submit"}
        assert agent.messages == MESSAGES
        answers = [agent.call(name, arguments) for name, arguments in CALLS]
        late = agent.call("bench", {})
    assert [answer.ok for answer in answers] == [True, True, False, True, True, True]
    assert [answer.ended for answer in answers] == [False] * 5 + [True]
    assert answers[1].text == "it wrong_values\n\nBudget left: 18 of 20 tool calls."
    assert "ended (submitted)" in answers[5].text and "passed" in answers[5].text
    assert (late.ok, late.ended) == (False, True) and "ended (submitted)" in late.text
    run = agent.ended
    assert run == fold(record.events())
    assert (run.reason, run.target_met, run.spend.steps, run.spend.usd_known) == ("submitted", True, 6, False)
    assert session.graded == ["b"] and run.best.candidate == candidate("b").hash
    assert [a.number for a in run.attempts] == [1, 1, 2, 2]
    kinds = [event.kind for event in record.events()]
    assert kinds == ["run_started", *["agent_called", "tool_returned"] * 6, "run_finished"]


def test_a_call_is_on_disk_before_it_is_made(record, monkeypatch):
    on_disk, real = [], Toolbox.call

    def look(self, session, name, arguments):
        on_disk.append([event.kind for event in Record.open(record.path).events()][-1])
        return real(self, session, name, arguments)

    monkeypatch.setattr(Toolbox, "call", look)
    with start(record) as agent:
        agent.call("write", '{"source": "a"}')
        agent.call("bench", "{}")
    assert on_disk == ["agent_called", "agent_called"]


def test_leaving_ends_the_run_with_the_official_evaluation(record):
    session = FakeSession(dict(ANSWERS))
    with start(record, session=session) as agent:
        agent.call("write", {"source": "b"})
        agent.call("bench", {})
    assert agent.close() == agent.ended
    assert (agent.ended.reason, session.graded) == ("model_stopped", ["b"])
    assert agent.ended.official == speed("b", 1.5)


@pytest.mark.parametrize(
    ("changed", "reason", "made"),
    [
        ({"budget": Budget(steps=3)}, "budget: steps", 3),
        ({"budget": Budget(device_s=2.0)}, "budget: device_s", 2),
        ({"target": Target(speedup=1.3)}, "target_met", 5),
    ],
)
def test_limits_and_targets_end_the_run_and_later_calls_are_refused(record, changed, reason, made):
    with start(record, **changed) as agent:
        answers = [agent.call(name, arguments) for name, arguments in CALLS]
    assert agent.ended.reason == reason and reason in answers[-1].text and not answers[-1].ok
    assert len([e for e in record.events() if isinstance(e, AgentCalled)]) == made


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"budget": Budget(usd=1.0)}, "cannot be limited"),
        ({"budget": Budget(tokens=10)}, "cannot be limited"),
        ({"strategy": "phased"}, "strategy 'phased'"),
        ({"model": "external:"}, "write external:NAME"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_anything_is_recorded(record, changed, said):
    with pytest.raises(UsageError, match=said):
        External.start(
            config(**{"model": "external:tester", **changed}), FakeSession(), record, MESSAGES, lambda event: None,
            prompts_hash="h", toolbox=Toolbox(),
        )  # fmt: skip
    assert not (record.path / "events.jsonl").exists()


def test_ctrl_c_and_errors_end_it_without_grading(tmp_path):
    for error, reason in ((KeyboardInterrupt(), "interrupted"), (ValueError("x"), "error: ValueError: x")):
        record, session = Record.create(tmp_path, reason[:5]), FakeSession(dict(ANSWERS))
        with record, pytest.raises(type(error)), start(record, session=session) as agent:
            agent.call("write", {"source": "b"})
            agent.call("bench", {})
            raise error
        assert (agent.ended.reason, session.graded) == (reason, [])


def test_a_bug_in_a_tool_is_recorded_and_raised_and_the_run_is_over(record):
    session = FakeSession({"a": [ZeroDivisionError("oops")]})
    agent = start(record, session=session)
    agent.call("write", {"source": "a"})
    with pytest.raises(ZeroDivisionError):
        agent.call("bench", {})
    assert agent.call("bench", {}).ended and agent.close().reason == "error: ZeroDivisionError: oops"
    assert sum(isinstance(event, RunFinished) for event in record.events()) == 1


def test_a_harness_failure_is_told_and_survived(record):
    session = FakeSession({"a": [HarnessError("rank 1 never started"), speed("a", 2.0)]})
    with start(record, session=session) as agent:
        agent.call("write", {"source": "a"})
        assert "not the candidate's fault" in agent.call("bench", {}).text
        assert agent.call("bench", {}).ok


def test_calls_from_many_threads_are_made_one_after_the_other(record):
    session = FakeSession(dict(ANSWERS))
    inside, most, real = [], [], Toolbox.call

    class Watched(Toolbox):
        def call(self, session, name, arguments):
            inside.append(name)
            most.append(len(inside))
            try:
                return real(self, session, name, arguments)
            finally:
                inside.pop()

    agent = External.start(
        config(model="external:tester", budget=Budget(steps=None)), session, record, MESSAGES, lambda event: None,
        prompts_hash="h", toolbox=Watched(), clock=Clock(),
    )  # fmt: skip
    answers = []
    with agent:
        threads = [
            threading.Thread(target=lambda: answers.extend(agent.call("write", {"source": s}) for s in "abcabcabc"))
            for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert max(most) == 1 and len(answers) == 54 and all(answer.ok for answer in answers)
    kinds = [event.kind for event in record.events()]
    assert kinds == ["run_started", *["agent_called", "tool_returned"] * 54, "run_finished"]
    assert [e.step for e in record.events() if isinstance(e, AgentCalled)] == list(range(1, 55))


def test_a_persons_words_come_with_the_next_result_and_only_once(record):
    with start(record) as agent:
        agent.call("write", {"source": "a"})
        control.send(record.path, Request(action="hint", text="push, do not pull"))
        control.send(record.path, Request(action="candidate", text="b"))
        first, second = agent.call("bench", {}), agent.call("bench", {})
    assert "push, do not pull" in first.text and "has replaced the candidate" in first.text
    assert "it passed" in first.text, "the call acts on the person's candidate"
    assert "push" not in second.text and agent.ended.helped


def test_a_pause_holds_a_call_and_leaving_ends_it(record):
    held = threading.Event()

    def watch(event):
        if isinstance(event, PersonActed):
            held.set()

    agent = start(record, watch)
    control.send(record.path, Request(action="pause"))
    answers = []
    calling = threading.Thread(target=lambda: answers.append(agent.call("write", {"source": "a"})))
    calling.start()
    assert held.wait(30) and record.run().status == "paused"
    agent.close()
    calling.join()
    assert agent.ended.reason == "model_stopped" and answers[0].ended and not answers[0].ok


def test_a_cancel_ends_the_run_at_the_next_call_or_when_the_agent_leaves(tmp_path):
    for leaves in (True, False):
        with Record.create(tmp_path, f"r{leaves}") as record, start(record) as agent:
            agent.call("write", {"source": "b"})
            agent.call("bench", {})
            control.send(record.path, Request(action="cancel"))
            if not leaves:
                answer = agent.call("bench", {})
                assert answer.ended and "cancelled" in answer.text
        assert agent.ended.reason == "cancelled" and agent.ended.official


def play(agent, made=0):
    with agent:
        return [agent.call(name, arguments) for name, arguments in CALLS[made:]]


def person(record):
    def watch(event):
        if isinstance(event, AgentCalled) and event.step == 2:
            control.send(record.path, Request(action="hint", text="push"))
        elif isinstance(event, ToolReturned) and event.step == 3:
            control.send(record.path, Request(action="candidate", text="c"))

    return watch


def test_killed_after_any_event(tmp_path):
    whole = Record.create(tmp_path, "whole")
    play(start(whole, person(whole)))
    whole.close()
    events = list(whole.events())
    assert events[-1].reason == "submitted" and sum(isinstance(e, PersonActed) for e in events) == 2
    for after in range(1, len(events)):
        record = _killed(tmp_path, after)
        before = list(record.events())
        agent = resume(record, person(record))
        # A server that starts again finds the pending call made; its agent goes on with the next one.
        answers = play(agent, made=sum(isinstance(event, AgentCalled) for event in before))
        record.close()
        assert _told(record.events()) == _told(events), after
        assert agent.ended.reason == "submitted" and control.pending(record.path) == []
        if answers and not answers[0].ended and any(isinstance(event, AgentCalled) for event in before):
            assert "restarted since your last call" in answers[0].text
        hinted = [e for e in record.events() if isinstance(e, ToolReturned) and "says:\n\npush" in e.text]
        assert hinted and hinted[0].step == 3


def _killed(root, after):
    record = Record.create(root, f"killed-{after}")
    child = os.fork()
    if child == 0:
        watch, count = person(record), 0

        def die(event):
            nonlocal count
            watch(event)
            count += 1
            if count == after:
                os._exit(9)

        try:
            play(start(record, die))
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    return Record.open(record.path)


def _told(events):
    return told([e.model_copy(update={"request": "x"}) if isinstance(e, PersonActed) else e for e in events])


def test_its_record_can_be_replayed(record):
    play(start(record))
    replay = Replay(record.path)
    turns = [replay.reply([], Toolbox().schemas()) for _ in CALLS]
    assert [turn.tool_calls[0].name for turn in turns] == [name for name, _ in CALLS]
