"""Persons enter a run: what they leave in its folder is taken between steps, once, however often the run is killed."""

from __future__ import annotations

import os
import time

import pytest

from agent import running
from agent.conversation import Conversation
from agent.loop import resume_loop, run_loop
from runs import control
from runs.control import Request
from runs.events import (
    Budget,
    ContextReset,
    ModelReplied,
    PersonActed,
    RunFinished,
    ToolReturned,
)
from runs.fold import fold, folding
from runs.messages import Usage
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
from tests.agent.test_resume import told
from tests.runs.factories import candidate, config

ANSWERS = {"a": [wrong("a")], "b": [speed("b", 1.5)], "p": [speed("p", 2.0)], "c": [speed("c", 1.2)]}
TURNS = (
    say(write("a"), BENCH),
    say(write("b"), BENCH),
    say(BENCH),
    say(write("c"), BENCH),
    say(SUBMIT),
)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "POLL_S", 0.001)


def leave(record, action, text=""):
    return control.send(record.path, Request(action=action, text=text))


def person(record):
    """Someone who says something after the first reply, edits while the run is paused, and ends it in the end."""

    def watch(event):
        match event:
            case ModelReplied(step=1):
                leave(record, "hint", "push, do not pull")
            case ToolReturned(step=2, call=call) if call.name == "bench":
                leave(record, "pause")
            case PersonActed(action="pause"):
                leave(record, "candidate", "p")
                leave(record, "hint", "measure mine")
                leave(record, "resume")
            case ToolReturned(step=4, call=call) if call.name == "write":
                leave(record, "cancel")

    return watch


def run(record, turns=TURNS, watch=lambda event: None, session=None, clock=None, **changed):
    model = Scripted(list(turns))
    done = run_loop(
        config(**changed), model, session or FakeSession(dict(ANSWERS)), record, MESSAGES, watch,
        prompts_hash="h", toolbox=Toolbox(), clock=clock or Clock(),
    )  # fmt: skip
    record.close()
    return done, model


def resumed(record, turns=TURNS, watch=lambda event: None, clock=None):
    events = list(record.events())
    heard = sum(isinstance(event, ModelReplied) for event in events)
    session, current = FakeSession(dict(ANSWERS)), Conversation(events).current
    session.current = next((candidate(s) for s in ANSWERS if candidate(s).hash == current), None)
    model = Scripted(list(turns[heard:]))
    done = resume_loop(model, session, record, watch, toolbox=Toolbox(), clock=clock or Clock())
    record.close()
    return done, model


def acted(record):
    return [event for event in record.events() if isinstance(event, PersonActed)]


def test_what_a_person_asks_for_is_done_between_steps_in_order(tmp_path):
    record = Record.create(tmp_path, "r")
    session = FakeSession(dict(ANSWERS))
    done, model = run(record, watch=person(record), session=session)
    assert [event.action for event in acted(record)] == ["hint", "pause", "candidate", "hint", "resume", "cancel"]
    assert done.reason == "cancelled" and done.helped
    assert session.graded == ["p"], "the best, which the person wrote, is graded"
    # The call that the cancel came before was not made.
    assert [e.call.name for e in record.events() if isinstance(e, ToolReturned) and e.step == 4] == ["write"]
    # After the first step's results, before the second request.
    assert [m.role for m in model.seen[1]] == ["system", "user", "assistant", "tool", "tool", "user"]
    assert "person" in model.seen[1][-1].text and model.seen[1][-1].text.endswith("push, do not pull")
    edited, hint = model.seen[2][-2:]
    assert edited.role == "user" and "attempt 3" in edited.text and "p" in edited.text.splitlines()
    assert hint.text.endswith("measure mine")
    # The tools acted on it, and its attempt is numbered as theirs are.
    assert [(a.number, a.tool, a.candidate == candidate("p").hash) for a in done.attempts] == [
        (1, "write", False), (1, "bench", False), (2, "write", False), (2, "bench", False),
        (3, "person", True), (3, "bench", True), (4, "write", False),
    ]  # fmt: skip
    assert record.candidate(candidate("p").hash).source == "p"
    assert control.pending(record.path) == []
    assert Conversation(record.events()).messages[: len(model.seen[-1])] == model.seen[-1]


def killed(root, name, after, work):
    """A record whose process died right after an event was written and before anything came of it."""
    record = Record.create(root, name)
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
            work(record, die)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    return Record.open(record.path)


def test_killed_after_any_event(tmp_path):
    whole = Record.create(tmp_path, "whole")
    run(whole, watch=person(whole))
    events = list(whole.events())
    assert isinstance(events[-1], RunFinished) and events[-1].reason == "cancelled"
    for after in range(1, len(events)):
        record = killed(tmp_path, f"killed-{after}", after, lambda record, die: run(record, watch=die))
        assert record.run().status == "interrupted"
        done, model = resumed(record, watch=person(record))
        assert _same(record, events), after
        assert done.reason == "cancelled" and control.pending(record.path) == []
        assert Conversation(record.events()).messages == Conversation(events).messages, after
        if model.seen:
            assert model.seen[-1] == Conversation(record.events()).messages[: len(model.seen[-1])]


def _same(record, events):
    ids = {"request": "x"}
    return told(_plain(record.events(), ids)) == told(_plain(events, ids))


def _plain(events, changed):
    return [event.model_copy(update=changed) if isinstance(event, PersonActed) else event for event in events]


def test_a_pause_takes_no_wall_time_and_is_seen(tmp_path):
    record, clock, seen = Record.create(tmp_path, "r"), Clock(), []

    def watch(event):
        if isinstance(event, ToolReturned) and event.step == 1 and event.call.name == "bench":
            leave(record, "pause")
        elif isinstance(event, PersonActed) and event.action == "pause":
            clock.now += 10_000
            leave(record, "hint", "think")
        elif isinstance(event, PersonActed) and event.action == "hint":
            seen.append(Record.open(record.path).run())
            clock.now += 10_000
            leave(record, "resume")

    done, model = run(record, watch=watch, clock=clock, budget=Budget(wall_s=500.0))
    assert done.reason == "submitted" and len(model.seen) == len(TURNS)
    assert seen[0].status == "paused" and seen[0].spend.wall_s < 100
    events = list(record.events())
    # Live and folded again: what the loop counted is what the events say.
    assert fold(events[:-1]).spend.wall_s == pytest.approx(done.spend.wall_s, abs=10) and done.spend.wall_s < 200


def test_a_run_that_ends_while_it_is_paused_goes_on_when_resumed(tmp_path):
    record, clock = Record.create(tmp_path, "r"), Clock()

    def watch(event):
        if isinstance(event, ModelReplied):
            leave(record, "pause")
        elif isinstance(event, PersonActed):
            clock.now += 10_000
            raise KeyboardInterrupt

    done, _ = run(record, watch=watch, clock=clock)
    assert done.reason == "interrupted" and done.spend.wall_s < 100
    clock.now += 10_000
    done, model = resumed(record, clock=clock)
    assert done.reason == "submitted" and len(model.seen) == len(TURNS) - 1
    assert done.spend.wall_s < 200 and fold(list(record.events())[:-1]).spend.wall_s < 200


def test_a_cancel_ends_a_pause(tmp_path):
    record, session = Record.create(tmp_path, "r"), FakeSession(dict(ANSWERS))

    def watch(event):
        if isinstance(event, ToolReturned) and event.step == 2 and event.call.name == "bench":
            leave(record, "pause")
        elif isinstance(event, PersonActed) and event.action == "pause":
            leave(record, "cancel")

    done, model = run(record, watch=watch, session=session)
    assert (done.status, done.reason, session.graded, len(model.seen)) == ("finished", "cancelled", ["b"], 2)


class Grading(FakeSession):
    """Does something during the official evaluation."""

    def official(self, of):
        self.during()
        return super().official(of)


def test_a_second_cancel_ends_without_grading(tmp_path):
    record, session = Record.create(tmp_path, "r"), Grading(dict(ANSWERS))

    def during():
        leave(record, "cancel")
        for _ in range(3000):  # until it is interrupted
            time.sleep(0.01)

    session.during = during

    def watch(event):
        if isinstance(event, ToolReturned) and event.step == 2:
            leave(record, "cancel")

    # The bench of step 2 is not made, so something else has to be the best.
    turns = (say(write("b"), BENCH), say(write("c"), BENCH), say(SUBMIT))
    done, _ = run(record, turns, watch, session)
    assert (done.reason, done.official) == ("interrupted", None) and done.best
    assert [event.action for event in acted(record)] == ["cancel", "cancel"]
    assert control.pending(record.path) == []
    # It can be gone on with as after Ctrl-C: the cancels are done with.
    done, _ = resumed(record, turns)
    assert done.reason == "submitted" and done.official


def test_one_cancel_while_a_run_is_graded_anyway_is_no_second_one(tmp_path):
    record, session = Record.create(tmp_path, "r"), Grading(dict(ANSWERS))

    def during():
        leave(record, "cancel")
        assert not running.Inbox(_Shown(record)).asks_for_no_grade()

    session.during = during
    done, _ = run(record, (say(write("b"), BENCH), say(SUBMIT)), session=session)
    assert done.reason == "submitted" and done.official
    assert [event.action for event in acted(record)] == ["cancel"] and control.pending(record.path) == []


class _Shown:
    def __init__(self, record):
        self.record, self.state = record, folding(record.events())


def test_what_is_no_request_is_refused_and_the_run_goes_on(tmp_path):
    record = Record.create(tmp_path, "r")
    folder = record.path / "control"
    (folder / "4.json").mkdir(parents=True)
    (folder / "1.json").write_text("pause")
    (folder / "2.json").write_text('{"action": "explode"}')
    (folder / "3.json").write_text('{"action": "hint", "text": " "}')
    (folder / "5.json").write_bytes(b'{"action": "hint", "text": "\\ud800"}')
    (folder / "6.json").write_text('{"action": "hint", "text": "still heard"}')
    (folder / ".7.json").write_text("half written")
    done, model = run(record)
    assert done.reason == "submitted"
    events = acted(record)
    assert [event.action for event in events] == [*["refused"] * 5, "hint"]
    assert all(event.text for event in events) and "hint" in events[2].text and events[3].text == "not a file"
    assert [m.text for m in model.seen[0]][2:] == [events[-1].told]
    assert sorted(p.name for p in folder.iterdir()) == [".7.json", "4.json"], "a folder is not ours to remove"


def test_a_request_that_could_not_be_removed_is_not_applied_again(tmp_path, monkeypatch):
    record = Record.create(tmp_path, "r")
    record.path.joinpath("control").mkdir()
    leave(record, "hint", "once")
    monkeypatch.setattr(control, "remove", lambda run, request: None)
    _, model = run(record)
    assert len(acted(record)) == 1 and len(control.pending(record.path)) == 1
    assert sum(m.text.endswith("once") for m in model.seen[-1]) == 1


def test_the_same_text_is_no_new_attempt(tmp_path):
    record = Record.create(tmp_path, "r")

    def watch(event):
        if isinstance(event, ToolReturned) and event.step == 2:
            leave(record, "candidate", "b")

    done, model = run(record, watch=watch)
    assert [a.tool for a in done.attempts].count("person") == 0
    assert "same text" in model.seen[2][-1].text


def test_a_small_edit_is_shown_as_a_diff_and_a_cancel_before_the_first_step_ends_the_run(tmp_path):
    record = Record.create(tmp_path, "r")
    source = "\n".join(f"line_{n} = {n}" for n in range(50))
    leave(record, "candidate", source)
    leave(record, "candidate", source.replace("line_7 = 7", "line_7 = 8"))
    leave(record, "cancel")
    leave(record, "hint", "too late")
    done, model = run(record)
    first, second, _ = acted(record)
    assert "attempt 1" in first.told and source in first.told
    assert "attempt 2" in second.told and "-line_7 = 7\n+line_7 = 8" in second.told and "line_40" not in second.told
    assert (done.reason, done.official, model.seen) == ("cancelled", None, [])
    assert [asked.action for asked in control.pending(record.path)] == ["hint"]


def test_hints_outlive_a_summary(tmp_path):
    record = Record.create(tmp_path, "r")

    def watch(event):
        if isinstance(event, ModelReplied) and event.step == 1:
            leave(record, "hint", "no NCCL please")

    turns = [turn.model_copy(update={"usage": Usage(input_tokens=2000)}) for turn in TURNS]
    _, model = run(record, turns, watch, context_tokens=1000)
    resets = [event for event in record.events() if isinstance(event, ContextReset)]
    assert resets and "- no NCCL please" in resets[-1].text
    assert any("no NCCL please" in message.text for message in model.seen[-1])


def test_what_was_left_for_an_interrupted_run_is_taken_when_it_is_resumed(tmp_path):
    record = Record.create(tmp_path, "r")

    def watch(event):
        if isinstance(event, ModelReplied) and event.step == 2:
            raise KeyboardInterrupt

    run(record, watch=watch)
    leave(record, "hint", "welcome back")
    done, model = resumed(record)
    assert done.reason == "submitted" and model.seen[0][-1].text.endswith("welcome back")
    kinds = [event.kind for event in record.events()]
    assert kinds.index("person_acted") > kinds.index("run_resumed")
