"""A run led from outside that asks a model for a step now and then, and breaks off what takes too long."""

from __future__ import annotations

import json
import threading
import time

import pytest

from agent.conversation import CUT, Conversation
from agent.models.base import ModelError, ReplyCutError
from agent.running import BROKEN_OFF, NOT_MADE
from harness.errors import BudgetEndedError
from runs import control
from runs.control import Request
from runs.events import Budget, ModelReplied, PersonActed, RunFinished, ToolReturned
from runs.exports.chat import chat_lines
from runs.exports.talks import talks
from runs.fold import fold
from runs.messages import Usage
from runs.record import Record
from tests.agent.test_bounds import begun, keys, make, whole  # noqa: F401  a fixture
from tests.agent.test_external import ANSWERS, resume, start
from tests.agent.test_loop import BENCH, SUBMIT, FakeSession, Scripted, Toolbox, say, speed, write, wrong
from tests.runs.factories import candidate


@pytest.fixture
def record(tmp_path):
    with Record.create(tmp_path, "r") as record:
        yield record


def model(*turns):
    return Scripted(list(turns), checked=False)


def test_a_step_is_recorded_paid_and_made(record):
    asked = model(say(write("b"), BENCH, text="Push instead."), say(text="It is as fast as it gets."))
    with start(record) as agent:
        agent.call("write", {"source": "a"})
        agent.call("bench", {})
        answer = agent.ask(asked)
        assert (answer.ok, answer.ended) == (True, False) and "it passed" in answer.text
        assert agent.ask(asked).text == "", "a reply without a call is no failure"
        agent.call("submit", {})
    run = agent.ended
    assert (run.reason, run.spend.steps, run.best.candidate) == ("submitted", 5, candidate("b").hash)
    assert run.spend.usd == pytest.approx(0.2) and run == fold(record.events())
    kinds = [event.kind for event in record.events()]
    assert kinds[5:9] == ["user_message", "model_replied", "tool_returned", "tool_returned"]
    assert run.attempts[-1].said == "It is as fast as it gets." or run.attempts[-1].said == "Push instead."


def test_the_model_is_told_what_the_person_did_as_somebody_elses_doing(record):
    asked, session = model(say(BENCH), say()), FakeSession({"b\n": [speed("b\n", 1.5)]})
    with start(record, session=session) as agent:
        agent.call("write", {"source": "b\n"})
        agent.ask(asked)
        agent.call("bench", {})
        agent.ask(asked)
    first, second = asked.seen
    assert [m.role for m in first] == ["system", "user", "user", "user"]
    assert first[2].text.startswith("Whoever leads this run has called write. It returned:\n\nwritten")
    assert "```\nb\n\n```" in first[2].text
    assert "A person leads this run" in first[3].text and "18 of 20" not in first[2].text
    assert [m.role for m in second[4:]] == ["assistant", "tool", "user", "user"]
    assert second[4].tool_calls[0].id == second[5].call_id, "its own calls go back as it made them"
    assert second == Conversation(list(record.events())[:-2]).messages, "the same after a restart"


def test_the_end_is_not_the_models(record):
    asked = model(say(write("b"), BENCH, SUBMIT), say())
    with start(record) as agent:
        answer = agent.ask(asked)
        assert not answer.ended and "submit is not available" in answer.text
        assert agent.call("submit", {}).ended


def test_a_providers_failure_does_not_end_the_run(record):
    asked = model(ModelError("overloaded"), say(BENCH))
    with start(record) as agent:
        agent.call("write", {"source": "b"})
        failed = agent.ask(asked)
        assert (failed.ok, failed.ended, failed.text) == (False, False, "overloaded")
        assert agent.ask(asked).ok
        assert "no further reply" in agent.ask(asked).text
    assert agent.ended.reason == "model_stopped"


def test_a_reply_that_is_broken_off_is_paid_and_the_run_goes_on(record):
    asked = model(ReplyCutError("stopped", Usage(input_tokens=100), 0.0), say(BENCH))
    with start(record) as agent:
        agent.call("write", {"source": "b"})
        cut = agent.ask(asked)
        assert not cut.ok and not cut.ended and "broken off" in cut.text
        assert agent.ask(asked).ok
    assert [e.turn.stop for e in record.events() if isinstance(e, ModelReplied)] == [CUT, ""]
    assert "assistant" not in [m.role for m in asked.seen[1]], "an empty reply is not sent back"


def test_a_limit_ends_the_run_as_in_a_call(record):
    with start(record, budget=Budget(steps=2)) as agent:
        agent.ask(model(say(write("b"))))
        agent.ask(model(say(BENCH)))
        answer = agent.ask(model(say(BENCH)))
    assert answer.ended and agent.ended.reason == "budget: steps" and agent.ended.official


class Waiting(FakeSession):
    """Measures until it is broken off, as the sandbox does."""

    def __init__(self):
        super().__init__(dict(ANSWERS))
        self.at_work, self.waits = threading.Event(), True

    def evaluate(self):
        self.at_work.set()
        if not self.waits:
            return super().evaluate()
        for _ in range(30_000):
            self.allowance.check()
            threading.Event().wait(0.001)
        raise AssertionError("nobody stopped it")


def in_thread(what):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(what()))
    thread.start()
    return thread, answers


def test_a_call_is_broken_off_and_the_run_goes_on(record):
    session = Waiting()
    with start(record, session=session) as agent:
        agent.call("write", {"source": "b"})
        thread, answers = in_thread(lambda: agent.call("bench", {}))
        assert session.at_work.wait(30)
        agent.stop()
        thread.join()
        assert (answers[0].ok, answers[0].ended) == (False, False) and BROKEN_OFF in answers[0].text
        session.waits = False
        assert agent.call("bench", {}).ok
    assert agent.ended.best.candidate == candidate("b").hash


def test_of_a_step_that_is_broken_off_no_further_call_is_made(record):
    session = Waiting()
    with start(record, session=session) as agent:
        thread, answers = in_thread(lambda: agent.ask(model(say(write("b"), BENCH, write("c"), BENCH))))
        assert session.at_work.wait(30)
        agent.stop()
        thread.join()
        assert not answers[0].ok
    returned = [e for e in record.events() if isinstance(e, ToolReturned)]
    assert [BROKEN_OFF in e.text for e in returned] == [False, True, False, False]
    assert [NOT_MADE in e.text for e in returned] == [False, False, True, True]
    assert session.current == candidate("b")


@pytest.mark.filterwarnings("ignore:Item '.*' on TypedDict class '.*' is using the `ReadOnly` qualifier")
@pytest.mark.parametrize("provider", ["openai", "anthropic", "google"])
def test_a_providers_stream_is_broken_off_and_it_can_be_asked_again(record, server, provider, keys):  # noqa: F811
    server.answers = [begun(provider), whole(provider)]
    asked = make(provider, server)
    with start(record) as agent:
        agent.call("write", {"source": "b"})
        thread, answers = in_thread(lambda: agent.ask(asked))
        deadline = time.monotonic() + 60
        while not server.requests:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        agent.stop()
        thread.join()
        assert "broken off" in answers[0].text and not answers[0].ended
        agent.call("bench", {})
        assert agent.ask(asked).ok
    cut, said = [e.turn for e in record.events() if isinstance(e, ModelReplied)]
    assert (cut.stop, said.text) == (CUT, "hi") and cut.usage.input_tokens
    assert "has called bench" in json.dumps(server.requests[1])


def test_leaving_for_later_grades_nothing_and_can_be_resumed(record):
    session = Waiting()
    agent = start(record, session=session)
    agent.call("write", {"source": "b"})
    thread, answers = in_thread(lambda: agent.call("bench", {}))
    assert session.at_work.wait(30)
    run = agent.leave()
    thread.join()
    assert (run.reason, session.graded, run.official) == ("interrupted", [], None)
    assert BROKEN_OFF in answers[0].text
    record.close()
    with resume(record) as again:
        assert again.call("bench", {}).ok
    assert again.ended.official and sum(isinstance(e, RunFinished) for e in record.events()) == 2


def test_leaving_a_paused_run_grades_nothing_either(record):
    session, held = FakeSession(dict(ANSWERS)), threading.Event()
    agent = start(record, lambda event: held.set() if isinstance(event, PersonActed) else None, session=session)
    agent.call("write", {"source": "b"})
    agent.call("bench", {})
    control.send(record.path, Request(action="pause"))
    thread, answers = in_thread(lambda: agent.call("bench", {}))
    assert held.wait(30)
    assert (agent.leave().reason, session.graded) == ("interrupted", [])
    thread.join()
    assert answers[0].ended and not answers[0].ok


def test_an_export_tells_apart_whose_calls_they_were(record):
    with start(record) as agent:
        agent.call("write", {"source": "b"})
        agent.ask(model(say(BENCH, text="Let me see."), say()))
        agent.call("bench", {})
        control.send(record.path, Request(action="hint", text="push"))
        agent.ask(model(say(text="Done.")))
    (talk,) = talks(record.events())
    told = [message for message in Conversation(record.events()).messages]
    assert [(said.message.role, said.message.text) for said in talk.entries] == [(m.role, m.text) for m in told]
    roles = "system user user user assistant tool user user user assistant"
    assert " ".join(said.message.role for said in talk.entries) == roles
    assert [[call["tool"] for call in step["calls"]] for step in talk.steps] == [["bench"], []]
    (line,) = chat_lines(record, Toolbox().schemas(), "all")
    assert [message["role"] for message in json.loads(line)["messages"]] == roles.split()


def test_a_limit_reached_inside_a_call_ends_the_run_and_is_told(record):
    session = FakeSession({"b": [speed("b", 1.5), BudgetEndedError("device_s"), speed("b", 1.5)]})
    with start(record, session=session) as agent:
        agent.call("write", {"source": "b"})
        agent.call("bench", {})
        answer = agent.call("bench", {})
    assert answer.ended and agent.ended.reason == "budget: device_s" and agent.ended.official


def test_a_models_submission_of_a_killed_step_is_not_made(record):
    events = []

    class Killed(BaseException):
        pass

    def die(event):
        events.append(event)
        if isinstance(event, ModelReplied):
            raise Killed

    agent = start(record, die, session=FakeSession({"a": [wrong("a")], "b": [speed("b", 1.5)]}))
    agent.call("write", {"source": "b"})
    agent.call("bench", {})
    agent._end = lambda by: None  # as if the process were gone
    with pytest.raises(Killed):
        agent.ask(model(say(SUBMIT)))
    record.close()
    with resume(record) as again:
        assert again.ended is None and Toolbox().schemas() == again.schemas()
        assert again.call("submit", {}).ended
