"""What each strategy says when, through the real loop with a scripted model."""

from __future__ import annotations

import pytest

from agent.conversation import Conversation
from agent.loop import resume_loop, run_loop
from agent.strategies import make
from agent.strategies.phased import PLATEAU, STRUGGLE
from harness.errors import UsageError
from harness.types import Verdict
from runs.events import Budget, ContextReset, ModelReplied, ToolReturned, UserMessage
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

WRONG = [f"w{i}" for i in range(STRUGGLE)]
SLOWER = [f"s{i}" for i in range(2 * PLATEAU)]
FAST, FASTER = "fast", "faster"
ANSWERS = {
    **{source: [wrong(source, Verdict.wrong_values)] for source in WRONG},
    **{source: [speed(source, 1.0)] for source in SLOWER},
    FAST: [speed(FAST, 1.5)],
    FASTER: [speed(FASTER, 1.8)],
}


JUDGED = [say(text="Send each shard once."), say(text="Fuse the copy.")]


def looped(tmp_path, strategy, turns, answers=ANSWERS, judged=JUDGED, **changed):
    record, model = Record.create(tmp_path, strategy), Scripted(list(turns), judged=list(judged))
    session = FakeSession(dict(answers))
    settings = {"strategy": strategy, "budget": Budget(steps=None), "platform": "cuda", "backend": "cuda", **changed}
    run = run_loop(
        config(**settings), model, session, record, MESSAGES, lambda event: None,
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
    assert "SM loads and stores, copy engine, TMA (`read` the page" in said[2] and "N" not in said[2]
    (reset,) = (event for event in record.events() if isinstance(event, ContextReset))
    assert reset.reason == "strategy" and "look at the problem afresh" in reset.text and "fast" in reset.text
    restarted = next(seen for seen in model.seen if len(seen) == 3 and "afresh" in seen[-1].text)
    assert restarted[:2] == list(MESSAGES)
    assert "proposes this change:\n\nSend each shard once.\n\nMake this change" in reset.text
    assert len(model.asked) == 1, "once for the plateau"


def test_the_judge_sees_the_best_and_what_was_tried_and_is_no_part_of_the_conversation(tmp_path):
    turns = tried("w0", FAST, *SLOWER)
    turns[3] = say(write(SLOWER[1]), BENCH, text="Wider loads now.")
    run, model, record, _ = looped(tmp_path, "phased", [*turns, say(SUBMIT)], budget=Budget(steps=30))
    (judged,) = (event for event in record.events() if isinstance(event, ModelReplied) and event.purpose == "judge")
    assert judged.turn == JUDGED[0] and list(judged.asked) == model.asked[0]
    assert judged.step == len(turns) + 1 and run.spend.steps == len(turns) + 2
    system, asked = model.asked[0]
    assert "exactly one change" in system.text and "multicast" in system.text
    assert asked.text.startswith(MESSAGES[1].text)
    assert "The best candidate, attempt 2" in asked.text and "```python\nfast\n```" in asked.text
    assert "Measured: eager 1.60x" in asked.text and "Floor: 5.0 us" in asked.text
    assert '- passed; eager 1.10x [1.00, 1.20], 10.0 us: "Wider loads now."' in asked.text
    assert "- passed; eager 1.10x [1.00, 1.20], 10.0 us: it changed\n    -fast\n    +s0" in asked.text
    assert "w0" not in asked.text and candidate("w0").hash in asked.text
    said = [message.text for message in model.seen[-1]]
    assert not any("exactly one change" in text for text in said) and "Send each shard once." in said[2]
    kinds = [event.kind for event in record.events()]
    assert kinds[kinds.index("context_reset") - 1] == "model_replied"


def test_no_judge_whose_answer_could_not_be_acted_on(tmp_path):
    turns = tried(FAST, *SLOWER)
    run, model, record, _ = looped(tmp_path, "phased", turns, budget=Budget(steps=len(turns) + 2), judged=[])
    assert topics(record) == ["fast", "plateau", "restart"] and model.asked == [] and run.reason == "model_stopped"


def test_a_judge_without_an_answer_changes_nothing(tmp_path):
    _, _, record, _ = looped(tmp_path, "phased", tried(FAST, *SLOWER), judged=[say(text=" \n")])
    (reset,) = (event for event in record.events() if isinstance(event, ContextReset))
    assert "Start from the best candidate, or from a design" in reset.text and "reviewer" not in reset.text


def test_the_judge_is_paid_once_whenever_the_run_is_killed(tmp_path):
    settings = config(strategy="phased", budget=Budget(steps=30))
    events = killed_after_any_event(tmp_path, settings, [*tried(FAST, *SLOWER), say(SUBMIT)], ANSWERS, JUDGED)
    assert sum(isinstance(event, ModelReplied) and event.purpose == "judge" for event in events) == 1


def test_the_last_reply_may_be_the_judges(tmp_path):
    """Tokens can run out with it, as with any reply."""
    turns = tried(FAST, *SLOWER)
    budget = Budget(steps=None, tokens=100 * (len(turns) + 1))
    run, model, *_ = looped(tmp_path, "phased", [*turns, say(SUBMIT)], budget=budget)
    assert run.reason == "budget: tokens" and len(model.asked) == 1 and len(model.seen) == len(turns)


def test_the_cpu_platform_is_not_asked_for_what_it_does_not_have(tmp_path):
    _, _, record, _ = looped(tmp_path, "phased", tried(FAST, *SLOWER), platform="cpu", backend="cpp")
    said = [event.text for event in record.events() if isinstance(event, UserMessage)]
    assert "data: shared memory. Or overlap" in " ".join(said[1].split()) and "page" not in said[1]


def test_a_resumed_run_is_led_on(tmp_path):
    turns = tried(FAST, *SLOWER)
    _, _, whole, _ = looped(tmp_path, "phased", turns)
    assert topics(whole) == ["fast", "plateau", "restart"]
    events = whole.path / "events.jsonl"
    lines = events.read_text(encoding="utf-8").splitlines(keepends=True)
    for kept in range(2, len(lines) - 1, 5):
        events.write_text("".join(lines[:kept]), encoding="utf-8")
        record = Record.open(whole.path)
        heard = Conversation(record.events()).replies
        written = [e.candidate for e in record.events() if isinstance(e, ToolReturned) and e.candidate]
        session = FakeSession(dict(ANSWERS))
        judged = JUDGED[Conversation(record.events()).judged :]
        session.current = next((candidate(s) for s in ANSWERS if written and candidate(s).hash == written[-1]), None)
        model = Scripted(turns[heard:], judged=judged)
        resume_loop(model, session, record, lambda event: None, toolbox=Toolbox(), clock=Clock())
        record.close()
        assert topics(record) == ["fast", "plateau", "restart"], kept


def test_the_plain_loop_says_nothing(tmp_path):
    _, _, record, _ = looped(tmp_path, "loop", tried(*WRONG, FAST, *SLOWER))
    assert topics(record) == []


class Offered(Scripted):
    """Keeps the names of the tools that it was offered."""

    def reply(self, messages, tools):
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
    with pytest.raises(UsageError, match="no strategy 'x'; there are single, loop, phased, lanes, branch"):
        make("x")
    assert make("lanes:5").count == 5 and make("lanes").count == make("branch").count == 3
    for wrong_one in ("lanes:", "lanes:1", "lanes:21", "lanes:x", "branch:-3", "lanes:99999999999999"):
        with pytest.raises(UsageError, match="from 2 to 20"):
            make(wrong_one)
    with pytest.raises(UsageError, match="phased takes no number; lanes and branch do"):
        make("phased:3")
    with pytest.raises(UsageError, match="5 lanes need at least 5 steps"):
        make("lanes:5").check(Budget(steps=4))
    with pytest.raises(UsageError, match="3 seeds need at least 6 steps"):
        make("branch").check(Budget(steps=5))
    make("lanes:20").check(Budget(steps=None))
