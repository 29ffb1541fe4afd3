"""What the keys do, on a real record."""

from __future__ import annotations

import threading
import time

import pytest

from harness.errors import UsageError
from runs import control
from runs.control import Request
from runs.events import AgentCalled, ModelReplied, PersonActed, RunFinished, ToolReturned, UserMessage
from tests.agent.test_loop import say
from tests.runs.factories import candidate
from tests.service.debugger.conftest import BETTER, BROKEN, GOOD, WRONG, done


def calls(debugging):
    return [e.call.name for e in debugging.record.events() if isinstance(e, AgentCalled)]


def writes(source):
    return "write_candidate", f'{{"source": {source!r}}}'.replace("'", '"')


def test_what_the_file_holds_becomes_an_attempt_before_the_next_call_and_once(begin):
    debugging = begin()
    assert debugging.edited()
    debugging.call("compile")
    assert done(debugging) == ""
    assert not debugging.edited() and debugging.journal.current == candidate(GOOD).hash
    debugging.call("run_benchmark")
    done(debugging)
    debugging.file.path.write_text(WRONG)  # an IDE
    assert debugging.edited()
    debugging.call("run_benchmark", timing=False)
    done(debugging)
    assert calls(debugging) == ["write_candidate", "compile", "run_benchmark", "write_candidate", "run_benchmark"]
    rows = debugging.journal.rows
    assert [(row.number, row.by, row.verdict) for row in rows] == [(1, "you", "passed"), (2, "you", "wrong_values")]
    assert debugging.journal.best == candidate(GOOD).hash
    assert [result.title.split(",")[0] for result in rows[0].results] == ["write_candidate", "compile", "run_benchmark"]


def test_lines_that_a_compiler_names_are_those_of_its_candidate(begin):
    debugging = begin(text=BROKEN)
    debugging.call("compile")
    done(debugging)
    result = debugging.journal.result
    assert (result.lines, result.candidate) == ({1}, candidate(BROKEN).hash)
    assert debugging.journal.rows[0].verdict == "compile_error"


def test_an_empty_or_unreadable_file_is_said_and_nothing_is_called(begin):
    debugging = begin()
    debugging.call("compile")
    done(debugging)
    debugging.file.path.write_text("")
    debugging.call("compile")
    assert "source is empty" in done(debugging)
    debugging.file.path.write_bytes(b"\xff\xff")
    debugging.call("compile")
    assert "not UTF-8" in done(debugging)
    debugging.file.path.unlink()
    debugging.call("compile")
    assert "cannot read" in done(debugging)
    assert calls(debugging) == ["write_candidate", "compile", "write_candidate"]


def test_a_model_is_asked_for_one_step_and_its_candidate_is_in_the_file(begin):
    debugging = begin(say(writes("z = 9"), ("compile", "{}"), text="Nine."), say(text="Enough."))
    debugging.ask("try nine")
    assert done(debugging) == ""
    assert debugging.file.read() == "z = 9" and not debugging.edited()
    kinds = [event.kind for event in debugging.record.events()][3:]
    assert kinds == ["person_acted", "user_message", "model_replied", "tool_returned", "tool_returned"]
    assert [row.by for row in debugging.journal.rows] == ["you", "model"]
    result = debugging.journal.result
    assert result.text.startswith("Nine.\n\n-> write_candidate") and "\n-> compile" in result.text
    assert result.title.startswith("the model, step 2 -> write_candidate")
    debugging.ask()
    assert done(debugging) == "" and debugging.journal.result.text == "Enough."
    seen = "\n".join(message.text for message in debugging.model.seen[0])
    assert "try nine" in seen and "x = 1" in seen
    run = debugging.record.run()
    assert run.helped and run.spend.usd == pytest.approx(0.2) and run.spend.steps == 3


def test_what_the_person_edits_while_the_model_thinks_is_kept(begin):
    debugging = begin(say(writes("z = 9")))
    real = debugging.model.reply

    def reply(*given):
        debugging.file.path.write_text(BETTER)
        return real(*given)

    debugging.model.reply = reply
    debugging.ask()
    assert "left as it is" in done(debugging)
    assert debugging.file.read() == BETTER and debugging.edited()
    debugging.branch(candidate("z = 9").hash)
    assert done(debugging) == ""
    assert debugging.file.read() == "z = 9"
    assert [row.candidate for row in debugging.journal.rows] == [candidate(t).hash for t in (GOOD, "z = 9", BETTER)]


def test_a_branch_is_a_new_attempt_once_it_is_used_and_knows_what_was_found(begin):
    debugging = begin()
    debugging.call("run_benchmark")
    done(debugging)
    debugging.file.write(WRONG)
    debugging.call("run_benchmark")
    done(debugging)
    debugging.branch(candidate(GOOD).hash)
    done(debugging)
    debugging.call("compile")
    done(debugging)
    rows = [(row.number, row.candidate, row.verdict) for row in debugging.journal.rows]
    assert rows[2] == (3, candidate(GOOD).hash, "passed")
    assert debugging.record.run().attempts[-1].number == 3, "as the record counts"


def test_one_thing_at_a_time_and_none_after_the_end(begin, bench):
    debugging = begin()
    with pytest.raises(UsageError, match="no model"):
        debugging.ask()
    bench.waits = True
    debugging.call("run_benchmark")
    assert bench.at_work.wait(30)
    with pytest.raises(UsageError, match="run_benchmark is under way"):
        debugging.call("compile")
    bench.waits = False
    done(debugging)
    debugging.submit()
    assert done(debugging) == "" and bench.graded == [GOOD]
    assert debugging.agent.ended.reason == "submitted" and debugging.journal.result.title == "official evaluation"
    with pytest.raises(UsageError, match="has ended"):
        debugging.call("compile")


def test_what_takes_too_long_is_broken_off_and_the_run_goes_on(begin, bench):
    debugging = begin()
    bench.waits = True
    debugging.call("run_benchmark")
    assert bench.at_work.wait(30)
    debugging.stop()
    assert "broken this call off" in done(debugging)
    bench.waits = False
    debugging.call("run_benchmark")
    assert done(debugging) == "" and debugging.journal.rows[0].verdict == "passed"


def test_a_stop_between_two_calls_is_heard(begin, bench):
    debugging = begin()
    bench.waits = True
    debugging.stop()  # nothing is under way
    debugging.call("run_benchmark")
    debugging.stop()  # perhaps still while the edit is recorded
    assert "broken" in done(debugging)


def test_leaving_breaks_off_what_is_under_way_and_grades_nothing(begin, bench):
    debugging = begin()
    bench.waits = True
    debugging.call("run_benchmark")
    assert bench.at_work.wait(30)
    debugging.leave()
    assert (debugging.agent.ended.reason, bench.graded) == ("interrupted", [])


def test_an_official_evaluation_that_is_stopped_ends_the_run_without_it(begin, bench, monkeypatch):
    debugging, grading = begin(), threading.Event()

    def official(of):
        grading.set()
        while True:
            time.sleep(0.001)

    monkeypatch.setattr(bench, "official", official)
    debugging.call("run_benchmark")
    done(debugging)
    debugging.submit()
    assert grading.wait(30)
    debugging.stop()
    done(debugging)
    assert debugging.agent.ended.reason == "interrupted"
    assert [e for e in debugging.record.events() if isinstance(e, RunFinished)][-1].official is None


def test_a_submission_without_a_right_candidate_is_refused(begin):
    debugging = begin(text=WRONG)
    debugging.submit()
    assert "nothing to submit" in done(debugging) and debugging.agent.ended is None


def test_another_persons_candidate_arrives_in_the_file(begin):
    debugging = begin()
    debugging.call("compile")
    done(debugging)
    control.send(debugging.record.path, Request(action="candidate", text=BETTER))
    debugging.call("run_benchmark")
    done(debugging)
    assert debugging.file.read() == BETTER and debugging.journal.rows[-1].by == "person"
    assert [e.action for e in debugging.record.events() if isinstance(e, PersonActed)] == ["candidate"]


def test_its_record_is_told_like_any_other(begin):
    debugging = begin(say(("compile", "{}"), text="Look."))
    debugging.ask()
    done(debugging)
    events = list(debugging.record.events())
    kinds = [type(event) for event in events[1:]]
    assert kinds == [AgentCalled, ToolReturned, UserMessage, ModelReplied, ToolReturned]
