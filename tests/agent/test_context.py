"""A conversation that becomes too long is replaced by what the record knows; the record keeps everything."""

from __future__ import annotations

from agent.conversation import Conversation
from agent.loop import run_loop
from agent.models.base import ContextOverflowError
from agent.models.replay import REPLAY_END
from harness.types import Verdict
from runs.events import ContextReset, ModelReplied
from runs.messages import Turn, Usage
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

ANSWERS = {
    "slow": [speed("slow", 1.1)],
    "fast": [speed("fast", 1.6)],
    "bad": [wrong("bad", Verdict.wrong_values)],
}
LONG = Usage(input_tokens=2000, output_tokens=10)


def looped(tmp_path, turns, **changed):
    record, model = Record.create(tmp_path, "r"), Scripted(list(turns))
    run = run_loop(
        config(context_tokens=1000, **changed), model, FakeSession(dict(ANSWERS)), record, MESSAGES, lambda event: None,
        prompts_hash="h", toolbox=Toolbox(), clock=Clock(),
    )  # fmt: skip
    record.close()
    return run, model, list(record.events())


def test_a_long_conversation_is_summed_up_from_the_record(tmp_path):
    run, model, events = looped(
        tmp_path,
        [
            say(write("slow"), BENCH, usage=Usage(input_tokens=500)),
            say(write("fast"), BENCH, usage=Usage(input_tokens=900)),
            say(write("bad"), BENCH, usage=LONG),
            say(SUBMIT, usage=Usage(input_tokens=700)),
        ],
    )
    assert run.reason == "submitted"
    assert [len(seen) for seen in model.seen] == [2, 5, 8, 3]
    assert model.seen[3][:2] == list(MESSAGES)
    text = model.seen[3][2].text
    (reset,) = (event for event in events if isinstance(event, ContextReset))
    assert reset.reason == "long" and reset.text == text
    best, current = candidate("fast").hash, candidate("bad").hash
    assert f"* attempt 2 ({best}): passed; eager 1.70x" in text
    assert f"({candidate('slow').hash}): passed; eager 1.20x" in text and f"({current}): wrong_values" in text
    assert f"The best candidate, attempt 2 ({best}):\n```python\nfast\n```" in text
    assert f"The current candidate, which tools act on ({current}):\n```python\nbad\n```" in text
    assert "The last failure (bench, step 3):" in text and "Budget left" in text
    # What was said stays in the record, and gives the same conversation again.
    assert sum(isinstance(event, ModelReplied) for event in events) == 4
    again = Conversation(events[: events.index(reset) + 1])
    assert again.messages == model.seen[3]


def test_a_provider_that_refuses_gets_the_summary_once(tmp_path):
    run, model, events = looped(tmp_path, [say(write("fast"), BENCH), ContextOverflowError("too long"), say(SUBMIT)])
    assert run.reason == "submitted" and [len(seen) for seen in model.seen] == [2, 5, 3]
    assert [e.reason for e in events if isinstance(e, ContextReset)] == ["overflow"]


def test_a_reply_that_filled_the_context_is_paid_for_and_followed_by_the_summary(tmp_path):
    cut = ContextOverflowError("full", say(text="so far", usage=LONG))
    run, model, events = looped(tmp_path, [say(write("fast"), BENCH), cut, say(SUBMIT)])
    assert run.reason == "submitted" and [len(seen) for seen in model.seen] == [2, 5, 3]
    replied = [event for event in events if isinstance(event, ModelReplied)]
    assert [(event.step, event.turn.text) for event in replied] == [(1, ""), (2, "so far"), (3, "")]
    assert run.spend.steps == 3 and run.spend.input_tokens == 90 + 2000 + 90

    # Without anything to leave out, or twice in a row, it ends the run; what was paid is in the record all the same.
    run, model, _ = looped(tmp_path / "first", [cut, say(SUBMIT)])
    assert (run.reason, run.spend.input_tokens, len(model.seen)) == ("error: full", 2000, 1)
    run, model, _ = looped(tmp_path / "twice", [say(write("fast"), BENCH), cut, cut])
    assert (run.reason, run.spend.input_tokens, len(model.seen)) == ("error: full", 90 + 4000, 3)


def test_what_cannot_be_made_shorter_ends_the_run(tmp_path):
    turns = [say(write("fast"), BENCH), ContextOverflowError("too long"), ContextOverflowError("still")]
    run, _, _ = looped(tmp_path, turns)
    assert run.reason == "error: still" and run.best is not None
    run, _, events = looped(tmp_path / "2", [ContextOverflowError("the task alone")])
    assert run.reason == "error: the task alone" and not any(isinstance(e, ContextReset) for e in events)


def test_nothing_done_yet(tmp_path):
    turns = [say(write("slow")), say(write("bad")), say(write("slow"), usage=LONG), Turn(stop=REPLAY_END)]
    _, model, _ = looped(tmp_path, turns)
    assert "No candidate has been run yet." in model.seen[3][-1].text


def test_a_summary_that_is_long_itself_is_not_made_at_every_step(tmp_path):
    turns = [say(write("slow"), BENCH, usage=LONG) for _ in range(8)]
    _, _, events = looped(tmp_path, [*turns, say(SUBMIT)])
    assert sum(isinstance(event, ContextReset) for event in events) == 4
