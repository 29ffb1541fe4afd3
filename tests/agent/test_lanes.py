"""Lanes share nothing but a budget, whenever the process is killed."""

from __future__ import annotations

import pytest

from agent.loop import run_loop
from harness.types import Verdict
from runs.events import Budget, ContextReset, LaneStarted, ToolReturned, UserMessage
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
from tests.agent.test_resume import killed_after_any_event
from tests.runs.factories import candidate, config

ANSWERS = {
    "a": [wrong("a", Verdict.wrong_values)],
    "b": [speed("b", 1.5)],
    "c": [speed("c", 1.8)],
    "d": [speed("d", 1.2)],
}
THINKING = say(text="let me think")


def looped(tmp_path, turns, strategy="lanes", steps=9, **changed):
    record, model, session = Record.create(tmp_path, "r"), Scripted(list(turns)), FakeSession(dict(ANSWERS))
    settings = config(**{"strategy": strategy, "budget": Budget(steps=steps), **changed})
    run = run_loop(
        settings, model, session, record, MESSAGES, lambda event: None,
        prompts_hash="h", toolbox=Toolbox(), clock=Clock(),
    )  # fmt: skip
    record.close()
    return run, model, session, list(record.events())


def test_each_begins_bare_and_the_best_of_all_is_graded(tmp_path):
    turns = [
        say(write("a"), BENCH),
        say(write("b"), BENCH),
        say(write("d"), BENCH),  # the first's share is used up
        say(write("c"), BENCH, text="another"),
        say(SUBMIT, write("a")),  # leaves one step to the last
        say(write("d"), BENCH),
        say(BENCH),
        say(BENCH),
        say(BENCH),
        say(SUBMIT),
    ]
    run, model, session, events = looped(tmp_path, turns)
    assert run.reason == "budget: steps" and run.spend.steps == 9 and run.lanes == 3
    assert session.graded == ["c"] and run.best.lane == 2 and session.lanes == [None, None]
    started = [event for event in events if isinstance(event, LaneStarted)]
    assert [(e.lane, e.text, e.candidate) for e in started] == [(2, "", None), (3, "", None)]
    assert model.seen[3] == model.seen[5] == list(MESSAGES)
    # Numbers begin anew, as the tools count them.
    assert [(a.lane, a.number) for a in run.attempts if a.verdict] == [(1, 1), (1, 2), (1, 3), (2, 1), *[(3, 1)] * 4]
    left = [event.text.split("\n\n")[-1] for event in events if isinstance(event, ToolReturned)]
    assert left[0] == "Budget left: 2 of 3 replies." and left[5] == "Budget left: 0 of 3 replies."
    assert left[6] == "Budget left: 2 of 3 replies."
    assert left[9] == "Budget left: 3 of 4 replies.", "what the second left"


def test_what_is_said_hangs_on_the_lane_alone(tmp_path):
    turns = [say(write("c"), BENCH), say(SUBMIT), *[say(write("d"), BENCH), say(SUBMIT)] * 2]
    run, _, _, events = looped(tmp_path, turns)
    assert run.reason == "submitted" and run.lanes == 3 and run.spend.steps == 6
    said = [event.text.splitlines()[0] for event in events if isinstance(event, UserMessage)]
    first = "A candidate is correct: attempt 1, {}x the reference. It is kept whatever comes next, so now make it fast."
    assert said == [first.format(speedup) for speedup in ("1.90", "1.30", "1.30")]


def test_replies_without_a_call_end_a_lane_and_a_target_the_run(tmp_path):
    turns = [*[THINKING] * 3, say(write("b"), BENCH), THINKING, THINKING, THINKING, say(write("c"), BENCH)]
    run, model, _, _ = looped(tmp_path, turns, steps=20)
    assert run.reason == "model_stopped" and run.lanes == 3
    assert model.seen[3] == model.seen[7] == list(MESSAGES)
    run, *_ = looped(tmp_path / "2", turns, steps=20, target={"speedup": 1.4})
    assert run.reason == "target_met" and run.lanes == 2


def test_a_summary_knows_its_own_lane_alone(tmp_path):
    long = Usage(input_tokens=5000)
    turns = [say(write("c"), BENCH), say(SUBMIT), *[say(write("d"), BENCH, usage=long)] * 3, say(SUBMIT)]
    _, _, _, events = looped(tmp_path, turns, strategy="lanes:2", context_tokens=1000)
    (reset,) = (event for event in events if isinstance(event, ContextReset))
    assert reset.reason == "long" and "* attempt 1" in reset.text
    assert candidate("d").hash in reset.text and candidate("c").hash not in reset.text


@pytest.mark.parametrize(
    ("budget", "lanes"),
    [(Budget(steps=None, tokens=650), [1, 1, 1, 2, 2, 3, 3]), (Budget(steps=None, usd=0.6), [1, 1, 2, 2, 3, 3])],
)
def test_every_limit_is_divided(tmp_path, budget, lanes):
    turns = [say(write("a")) if n % 2 else say(write("d")) for n in range(9)]
    run, _, _, _ = looped(tmp_path, turns, budget=budget)
    assert run.reason.startswith("budget") and [a.lane for a in run.attempts] == lanes


def test_without_limits_the_model_ends_each_lane(tmp_path):
    turns = [say(write("b"), BENCH), say(SUBMIT)] * 2
    run, *_ = looped(tmp_path, turns, strategy="lanes:2", steps=None)
    assert run.reason == "submitted" and run.lanes == 2


def test_the_end_of_a_replay_begins_no_lane(tmp_path):
    run, *_ = looped(tmp_path, [say(write("b"), BENCH)])
    assert run.reason == "model_stopped" and run.lanes == 1


ENDINGS = {
    "submitted": [say(write("a"), BENCH), say(SUBMIT), say(write("c"), BENCH), say(SUBMIT, BENCH), *[say(SUBMIT)] * 2],
    "budget: steps": [say(write(source), BENCH) for source in "abcdabcda"],
    "model_stopped": [say(write("b"), BENCH), *[THINKING] * 3, say(write("c"), BENCH, SUBMIT), *[THINKING] * 3],
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_killed_after_any_event(tmp_path, ending):
    settings = config(strategy="lanes", budget=Budget(steps=9))
    events = killed_after_any_event(tmp_path, settings, ENDINGS[ending], ANSWERS)
    assert events[-1].reason == ending and sum(isinstance(event, LaneStarted) for event in events) == 2
