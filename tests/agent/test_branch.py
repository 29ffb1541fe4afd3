"""Seeds that share nothing, then rounds from the best, whenever the process is killed."""

from __future__ import annotations

import pytest

from agent.loop import run_loop
from agent.strategies.branch import DRY, SECOND_EVERY, SEED_STEPS
from harness.types import Evaluation, Verdict
from runs.events import Budget, ContextReset, LaneStarted, UserMessage
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


def by(mechanism: str, evaluated: Evaluation) -> Evaluation:
    return evaluated.model_copy(update={"mechanisms": (mechanism,)})


SLOWER = [f"s{n}" for n in range(12)]
FAILING = [f"f{n}" for n in range(2 * DRY)]
ANSWERS = {
    **{source: [wrong(source)] for source in FAILING},
    "push": [by("SM loads and stores", speed("push", 1.2))],
    "copy": [by("copy engine", speed("copy", 1.6))],
    "bad": [wrong("bad", Verdict.race)],
    "copy2": [by("copy engine", speed("copy2", 1.9))],
    **{source: [by("copy engine", speed(source, 1.0))] for source in SLOWER},
}
SEEDS = [
    say(write("push"), BENCH, text="Push by stores."),
    say(SUBMIT),
    say(write("copy"), BENCH),
    say(SUBMIT),
    say(write("bad"), BENCH),
    say(SUBMIT),
]


def looped(tmp_path, turns, strategy="branch", steps=60, **changed):
    record, model, session = Record.create(tmp_path, "r"), Scripted(list(turns)), FakeSession(dict(ANSWERS))
    settings = {"strategy": strategy, "budget": Budget(steps=steps), "platform": "cuda", "backend": "cuda"}
    run = run_loop(
        config(**{**settings, **changed}), model, session, record, MESSAGES, lambda event: None,
        prompts_hash="h", toolbox=Toolbox(), clock=Clock(),
    )  # fmt: skip
    record.close()
    return run, model, session, list(record.events())


def started(events):
    return [event for event in events if isinstance(event, LaneStarted)]


def dry(first, last):
    return [say(write(source), BENCH) for source in SLOWER[first:last]]


def test_seeds_differ_in_mechanism_and_share_nothing(tmp_path):
    run, model, session, events = looped(tmp_path, SEEDS)
    assert run.reason == "model_stopped" and session.graded == ["copy"]
    (first,) = (event for event in events if isinstance(event, UserMessage) and event.topic == "seed")
    second, third, _ = started(events)
    for event, mechanism in ((first, "SM loads and stores"), (second, "copy engine"), (third, "TMA")):
        assert f"between ranks by: {mechanism} (the page `mechanisms`" in event.text
        assert event.topic == "seed" and f"You have {SEED_STEPS} replies" in event.text
    # Each is asked with the bare conversation and its own text.
    for seen in (model.seen[0], model.seen[2], model.seen[4]):
        assert seen[:2] == list(MESSAGES) and len(seen) == 3
    assert session.lanes[:2] == [None, None]


def test_a_seed_has_a_few_steps(tmp_path):
    turns = [say(write("push")) for _ in range(30)]
    run, _, _, events = looped(tmp_path, turns, steps=20)
    assert "You have 3 replies" in started(events)[0].text
    assert [event.topic for event in started(events)] == ["seed"] * 6, "seeds, until one is correct"
    # In turns; what the references use is the last that is asked for.
    asked = [event.text.split("between ranks by: ")[1].split(" (")[0] for event in started(events)]
    assert asked == ["copy engine", "TMA", "NCCL", "SM loads and stores", "copy engine", "TMA"]
    assert run.reason == "budget: steps"


@pytest.mark.parametrize(
    ("collectives", "asked"), [("allow", ["gloo", "shared memory"]), ("refuse", ["shared memory"])]
)
def test_a_seed_is_asked_for_what_the_platform_and_the_run_allow(tmp_path, collectives, asked):
    _, _, _, events = looped(tmp_path, SEEDS[:4], platform="cpu", backend="cpp", collectives=collectives)
    texts = [event.text for event in started(events)]
    assert len(texts) == 2 and all("page" not in text for text in texts)
    assert [text.split("between ranks by: ")[1].split(".\nDo")[0] for text in texts] == (asked * 2)[:2]


def test_a_round_begins_from_the_best_with_its_figures_and_what_was_tried(tmp_path):
    wrong_turn = say(write("bad"), BENCH, text="Drop the second barrier.")
    turns = [*SEEDS, *dry(0, 1), wrong_turn, *dry(1, DRY), say(SUBMIT)]
    run, model, session, events = looped(tmp_path, turns)
    first, second = started(events)[2:4]
    copy = candidate("copy").hash
    assert (first.topic, first.candidate, second.candidate) == ("branch", copy, copy)
    assert session.lanes[2:4] == ["copy", "copy"]
    assert "attempt 1, 1.70x the reference, which moves its data by copy engine" in first.text
    assert "```python\ncopy\n```" in first.text and "Measured: eager 1.70x [1.60, 1.80], 10.0 us" in first.text
    assert "Floor: 5.0 us; 50% of it reached" in first.text
    assert "Tried from it" not in first.text and "push" not in first.text.lower().split("attempt 1,")[1][:400]
    tried = second.text.split("Tried from it so far, and what came of it:\n")[1]
    assert tried.splitlines()[:4] == [
        "- passed; eager 1.10x [1.00, 1.20], 10.0 us: it changed",
        "    -copy",
        "    +s0",
        '- race; it race: "Drop the second barrier."',
    ]
    assert tried.count("- passed") == DRY
    # Numbers go on from the candidate's own, which is 1.
    assert [a.number for a in run.attempts if a.lane == 4 and a.verdict] == [2, 3, 4, 5]
    assert model.seen[6][:2] == list(MESSAGES) and model.seen[6][2].text == first.text


def test_mostly_the_best_sometimes_the_best_of_another_mechanism(tmp_path):
    turns = [*SEEDS, say(write("copy2"), BENCH), *dry(0, DRY), *dry(DRY, 2 * DRY), *dry(2 * DRY, 3 * DRY)]
    _, _, _, events = looped(tmp_path, [*turns, say(SUBMIT)])
    rounds = [event for event in started(events) if event.topic == "branch"]
    assert SECOND_EVERY == 3
    assert [e.candidate for e in rounds] == [candidate(s).hash for s in ("copy", "copy2", "push", "copy2")]
    assert "not the fastest so far (2.00x the reference, by copy engine)" in rounds[2].text
    assert "not the fastest" not in rounds[1].text


def test_failures_end_a_branch_too(tmp_path):
    _, _, _, events = looped(tmp_path, [*SEEDS, *[say(write(source), BENCH) for source in FAILING], say(SUBMIT)])
    assert [event.topic for event in started(events)] == ["seed", "seed", "branch", "branch", "branch"]


def test_a_model_that_gives_up_three_rounds_in_a_row_ends_the_run(tmp_path):
    run, _, _, events = looped(tmp_path, [*SEEDS, *[say(SUBMIT)] * 9])
    assert run.reason == "submitted" and run.spend.steps == len(SEEDS) + 3 and len(started(events)) == 5


def test_what_a_branch_is_for_outlasts_a_summary(tmp_path):
    long = Usage(input_tokens=5000)
    turns = [*SEEDS, *[say(write("copy2"), BENCH, usage=long)] * 3, say(SUBMIT)]
    _, model, _, events = looped(tmp_path, turns, context_tokens=1000)
    (reset,) = (event for event in events if isinstance(event, ContextReset))
    seen = next(seen for seen in model.seen if seen[-1].text == reset.text)
    assert [message.text for message in seen[2:]] == [started(events)[2].text, reset.text]
    assert f"  attempt 1 ({candidate('copy').hash}): passed" in reset.text and "* attempt 2" in reset.text


def test_killed_after_any_event(tmp_path):
    settings = config(strategy="branch", budget=Budget(steps=14), platform="cuda", backend="cuda")
    turns = [*SEEDS, say(write("copy2"), BENCH), *dry(0, 2 * DRY), say(SUBMIT)]
    events = killed_after_any_event(tmp_path, settings, turns, ANSWERS)
    assert events[-1].reason == "submitted", "with the last step, which begins no other branch"
    assert [event.topic for event in started(events)] == ["seed"] * 2 + ["branch"] * 3
