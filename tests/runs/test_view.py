"""What is shown of a run, from made-up events and from recorded ones."""

from __future__ import annotations

import pytest

from harness.errors import UsageError
from harness.types import RankReport, Stage, Verdict, to_json
from runs.diff import diff
from runs.events import (
    Budget,
    LaneStarted,
    ModelReplied,
    PersonActed,
    RunFinished,
    RunResumed,
    RunStarted,
    Spend,
    ToolReturned,
    UserMessage,
)
from runs.messages import Message, ToolCall, Turn
from runs.record import DEFAULT_ROOT, Record
from runs.revisions import alike, counted
from runs.view import view
from tests.runs.factories import candidate, config, evaluation, measurement

A, B, C = (candidate(f"# {name}\n") for name in "abc")


def call(name: str, identity: str = "", arguments: str = "{}") -> ToolCall:
    return ToolCall(id=identity or name, name=name, arguments=arguments)


def replied(at: float, step: int, *calls: ToolCall, text: str = "") -> ModelReplied:
    return ModelReplied(at=at, step=step, turn=Turn(text=text, tool_calls=calls, cost_usd=0.5), seconds=1)


def returned(at: float, step: int, of: ToolCall, **more) -> ToolReturned:
    return ToolReturned(at=at, step=step, call=of, ok=more.pop("ok", True), text=f"did {of.id}", seconds=2, **more)


START = RunStarted(
    at=100,
    run_id="r",
    config=config(budget=Budget(steps=4, usd=2.0)),
    prompts_hash="h",
    messages=(Message(role="system", text="be good"), Message(role="user", text="do it")),
)


def test_calls_on_one_text_are_one_revision_and_the_worst_of_them_counts() -> None:
    write, bench = call("write_candidate", "w"), call("run_benchmark", "b")
    shown = view(
        [
            START,
            replied(101, 1, write, bench, text="first try"),
            returned(102, 1, write, candidate=A.hash),
            returned(103, 1, bench, candidate=A.hash, evaluation=evaluation(A, measured=measurement(1.5, 1.2))),
            replied(104, 2, bench),
            returned(105, 2, bench, candidate=A.hash, evaluation=evaluation(A, Verdict.race)),
            replied(106, 3, write),
            returned(107, 3, write, candidate=B.hash),
        ]
    )
    first, second = shown.revisions
    assert (first.key, first.step, first.tool, first.said, first.at_s) == ("1", 1, "write_candidate", "first try", 2)
    assert first.verdict is Verdict.race and first.summary == "it race" and first.measurement is None
    assert [one.verdict for one in first.evaluations] == [Verdict.passed, Verdict.race]
    assert second.verdict is None and shown.before(second) is first and shown.before(first) is None
    assert shown.best is None and shown.revision("2") is second and shown.revision("3") is None
    assert shown.revision("x.1") is None and shown.revision("1.") is None


def test_the_transcript_pairs_calls_with_results_as_they_come() -> None:
    write = call("write_candidate", "w", '{"source": "x", "lines": [1, 2]}')
    broken = call("compile", "c", "{no json")
    events = [START, replied(101, 1, write, broken, text="try"), returned(103, 1, write, candidate=A.hash)]
    shown = view(events)
    system, user, step = shown.entries
    assert (system.role, user.role, user.text) == ("system", "user", "do it")
    made, waiting = step.calls
    assert made.arguments == (("source", "x"), ("lines", "[1, 2]"))
    assert (made.result, made.candidate) == ("did w", A.hash)
    assert waiting.arguments == (("", "{no json"),) and waiting.result is None
    shown.add(returned(104, 1, broken, ok=False))
    assert (waiting.result, waiting.ok, waiting.seconds) == ("did c", False, 2)
    shown.add(UserMessage(at=105, text="faster", topic="fast"))
    shown.add(PersonActed(at=106, request="1", action="hint", step=1, text="t", told="a person says t"))
    shown.add(RunFinished(at=107, reason="error: 503", best=None, official=None, target_met=False, spend=Spend()))
    assert [entry.title for entry in shown.entries[3:]] == [
        "Said by the loop (fast)",
        "A person: hint",
        "Finished: error: 503",
    ]
    assert shown.finished is not None
    shown.add(RunResumed(at=200))
    assert shown.finished is None and shown.entries[-1].title == "Resumed"


def test_half_a_surrogate_pair_can_be_written() -> None:
    shown = view([START, replied(101, 1, call("x", "x", r'{"source": "\ud83d"}'))])
    assert shown.entries[-1].calls[0].arguments == (("source", "?"),)


def test_a_lane_counts_for_itself_and_goes_on_from_its_parent() -> None:
    write, bench = call("write_candidate", "w"), call("run_benchmark", "b")
    shown = view(
        [
            START,
            replied(101, 1, write, bench),
            returned(102, 1, write, candidate=A.hash),
            returned(103, 1, bench, candidate=A.hash, evaluation=evaluation(A, measured=measurement(1.5))),
            LaneStarted(at=104, lane=2, text="another way", candidate=A.hash),
            replied(105, 2, write),
            returned(106, 2, write, candidate=B.hash),
            PersonActed(at=107, request="2", action="candidate", step=2, candidate=C.hash),
        ]
    )
    assert [one.key for one in shown.revisions] == ["1", "2.2", "2.3"]
    assert shown.before(shown.revisions[1]) is shown.revisions[0] is shown.best
    assert shown.revisions[2].tool == "person" and shown.revision("2.3") is shown.revisions[2]


def test_spend_stands_beside_its_limits() -> None:
    shown = view([START, replied(101, 1), replied(102, 2)])
    used = {one.name: one for one in shown.used()}
    assert (used["steps"].used, used["steps"].limit) == (2, 4)
    assert (used["cost"].used, used["cost"].limit, used["cost"].exact) == (1.0, 2.0, True)
    assert used["tokens"].limit is None


def test_a_recorded_run_has_its_failing_build_and_its_best() -> None:
    shown = view(Record.open(DEFAULT_ROOT.parent / "examples" / "p01-cpu").events())
    assert [one.verdict for one in shown.revisions] == ["compile_error", None, "wrong_values", *["passed"] * 3]
    failed = shown.revisions[0].failed
    assert failed is not None and "rs_barrier" in failed.log and shown.revisions[0].summary == failed.summary
    assert shown.best is shown.revisions[-1] and shown.official is not None
    assert all(one.result is not None for entry in shown.entries for one in entry.calls)


def test_a_profile_is_its_candidates() -> None:
    profile = {"candidate": B.hash, "dtype": "float32", "iterations": 3, "ranks": [], "trace": "traces/t.json"}
    write, profiled = call("write_candidate", "w"), call("profile", "p")
    shown = view(
        [
            START,
            replied(101, 1, write, profiled),
            returned(102, 1, write, candidate=B.hash),
            returned(103, 1, profiled, candidate=B.hash, data={"profile": profile}),
            returned(104, 1, profiled, candidate=B.hash, data={"profile": {"of": "a later version"}}),
        ]
    )
    assert shown.revisions[0].profile is not None and to_json(shown.revisions[0].profile)["trace"] == "traces/t.json"


def test_what_ranks_say_alike_is_said_once() -> None:
    ranks = [
        RankReport(rank=rank, ok=False, stage=Stage.correctness, message="lost" if rank else "asleep")
        for rank in range(4)
    ]
    assert [(names, report.message) for names, report in alike(ranks)] == [
        ("rank 0", "asleep"),
        ("ranks 1, 2, 3", "lost"),
    ]
    assert counted(("H200", "H200", "cpu")) == "2x H200, cpu"


def test_no_beginning_is_no_run() -> None:
    with pytest.raises(UsageError, match="run_started"):
        view([replied(1, 1)])


def test_a_diff_keeps_what_is_near_a_change() -> None:
    old = "".join(f"line {n}\n" for n in range(1, 31))
    new = old.replace("line 10\n", "line ten\nline ten and a half\n")
    lines = diff(old, new, context=2)
    assert [(line.mark, line.text) for line in lines] == [
        ("@", "... 7 lines that are the same"),
        (" ", "line 8"),
        (" ", "line 9"),
        ("-", "line 10"),
        ("+", "line ten"),
        ("+", "line ten and a half"),
        (" ", "line 11"),
        (" ", "line 12"),
        ("@", "... 18 lines that are the same"),
    ]
    assert [(line.old, line.new) for line in lines[1:5]] == [(8, 8), (9, 9), (10, None), (None, 10)]
    assert (lines[6].old, lines[6].new) == (11, 12)
    assert diff(old, old) == [] and len(diff(old, old, context=None)) == 30
    assert [line.mark for line in diff("", "a\n")] == ["-", "+"]


def test_a_diff_of_a_huge_text_is_refused_and_of_a_dull_one_quick() -> None:
    with pytest.raises(UsageError, match="not compared"):
        diff("a\n" * 20_001, "b")
    assert len(diff("a\n" * 19_000, "a\n" * 18_000 + "b\n")) > 0
