from typing import Any

import pytest

from harness.errors import UsageError
from harness.types import Evaluation, Measurement, Verdict
from runs.attempts import Attempt, best, target_met
from runs.events import (
    AgentCalled,
    ModelReplied,
    PersonActed,
    RunFinished,
    RunResumed,
    RunStarted,
    Spend,
    Target,
    ToolReturned,
    UserMessage,
)
from runs.fold import fold, folding
from runs.messages import ToolCall, Turn, Usage
from tests.runs.factories import candidate, config, evaluation, measurement

STARTED = RunStarted(at=100.0, run_id="r", config=config(), prompts_hash="h", messages=())
A, B = candidate("a"), candidate("b")


def returned(at: float, tool: str, written: str | None = None, evaluated: Evaluation | None = None) -> ToolReturned:
    return ToolReturned(
        at=at,
        step=1,
        call=ToolCall(id="1", name=tool, arguments="{}"),
        ok=True,
        text="",
        seconds=1.0,
        candidate=written,
        evaluation=evaluated,
        device_s=evaluated.device_s if evaluated else 0.0,
    )


def test_a_run_from_its_events() -> None:
    turn = Turn(usage=Usage(input_tokens=100, output_tokens=20), cost_usd=0.5)
    events = [
        STARTED,
        ModelReplied(at=101.0, step=1, turn=turn, seconds=1.0),
        returned(102.0, "write_candidate", written=A.hash),
        returned(103.0, "compile", written=A.hash),
        returned(104.0, "run_benchmark", A.hash, evaluation(A, measured=measurement(1.2, 1.1))),
        UserMessage(at=105.0, text="go on"),
        ModelReplied(at=106.0, step=2, turn=Turn(), seconds=1.0),
        returned(107.0, "edit_candidate", written=B.hash),
        returned(108.0, "run_benchmark", B.hash, evaluation(B, Verdict.race)),
        returned(109.0, "read"),
    ]
    run = fold(events)
    assert (run.run_id, run.status, run.reason, run.started_at, run.finished_at) == (
        "r",
        "interrupted",
        None,
        100.0,
        None,
    )
    assert fold(events, live=True).status == "running"
    assert run.spend == Spend(steps=2, tokens=120, input_tokens=100, usd=0.5, usd_known=False, wall_s=9.0, device_s=4.0)
    assert [(a.number, a.tool, a.candidate, a.verdict) for a in run.attempts] == [
        (1, "write_candidate", A.hash, None),
        (1, "run_benchmark", A.hash, Verdict.passed),
        (2, "edit_candidate", B.hash, None),
        (2, "run_benchmark", B.hash, Verdict.race),
    ]
    assert run.best == run.attempts[1]
    assert run.best and run.best.eager and run.best.device
    assert (run.best.eager.low, run.best.device.low) == (1.2, 1.1)

    official = evaluation(A, measured=measurement(1.15))
    spend = Spend(steps=2, wall_s=20.0)
    end = RunFinished(at=120.0, reason="submitted", best=A.hash, official=official, target_met=True, spend=spend)
    done = fold([*events, end])
    assert (done.status, done.reason, done.finished_at) == ("finished", "submitted", 120.0)
    assert (done.official, done.target_met, done.spend) == (official, True, spend)


def test_waiting_for_a_rate_limit_is_not_working_time() -> None:
    replied = ModelReplied(at=190.0, step=1, turn=Turn(waited_s=60.0), seconds=80.0)
    spend = fold([STARTED, replied, returned(200.0, "read")]).spend
    assert (spend.wall_s, spend.waited_s) == (40.0, 60.0)


def acted(at: float, action: str, **more: Any) -> PersonActed:
    return PersonActed(at=at, request=f"{action}-{at}", action=action, step=1, **more)


def test_a_pause_is_no_working_time_however_it_ends() -> None:
    paused = [STARTED, acted(110.0, "pause"), acted(150.0, "hint", text="x", told="x"), acted(160.0, "pause")]
    assert fold(paused, live=True).spend.wall_s == 10.0
    assert (fold(paused, live=True).status, fold(paused).status) == ("paused", "interrupted")
    ends = [
        [acted(200.0, "resume")],
        [acted(200.0, "cancel")],
        [RunResumed(at=200.0)],
        [RunFinished(at=180.0, reason="interrupted", best=None, official=None, target_met=False, spend=Spend()),
         RunResumed(at=200.0)],
    ]  # fmt: skip
    for end in ends:
        state = folding([*paused, *end, returned(205.0, "read")])
        assert state.spend.wall_s == 15.0 and not state.paused, end
        assert state.run(live=True).status == "running"
        assert state.cancelled == (end[0].kind == "person_acted" and end[0].action == "cancel")


def test_a_persons_candidate_is_an_attempt_and_a_cancel_is_over_with_the_run() -> None:
    ended = RunFinished(at=140.0, reason="interrupted", best=None, official=None, target_met=False, spend=Spend())
    events = [
        STARTED,
        acted(110.0, "candidate", told="t", candidate="a"),
        acted(120.0, "candidate", told="t", candidate="a"),
        acted(130.0, "cancel"),
        ended,
    ]
    run = fold(events)
    assert [(a.number, a.tool, a.candidate, a.verdict) for a in run.attempts] == [(1, "person", "a", None)]
    assert run.helped and not fold([STARTED, acted(1.0, "pause")]).helped
    assert folding(events[:-1]).cancelled and not folding(events).cancelled


def test_calls_from_outside_are_steps_of_unknown_cost() -> None:
    call = ToolCall(id="c", name="read", arguments="{}")
    spend = fold([STARTED, AgentCalled(at=101.0, step=1, call=call), AgentCalled(at=102.0, step=2, call=call)]).spend
    assert (spend.steps, spend.tokens, spend.usd_known) == (2, 0, False)


def test_a_record_without_its_beginning_is_refused() -> None:
    with pytest.raises(UsageError, match="does not begin with run_started"):
        fold([])


def attempt(number: int, measured: Measurement | None, name: str = "", verdict: Verdict = Verdict.passed) -> Attempt:
    return Attempt(
        number=number,
        step=number,
        candidate=name or str(number),
        tool="run_benchmark",
        verdict=verdict,
        summary="",
        measurement=measured,
    )


@pytest.mark.parametrize(
    ("attempts", "wins"),
    [
        ([], None),
        ([attempt(1, None, verdict=Verdict.wrong_values)], None),
        ([attempt(1, None)], 1),
        ([attempt(1, None), attempt(2, measurement(0.2))], 2),
        ([attempt(1, measurement(0.2)), attempt(2, None)], 1),
        ([attempt(1, measurement(1.0)), attempt(2, measurement(1.0))], 1),
        ([attempt(1, measurement(2.0, 0.9)), attempt(2, measurement(1.5, 1.0))], 2),
        ([attempt(1, measurement(1.2, 2.0)), attempt(2, measurement(1.3))], 2),
        ([attempt(1, measurement(1.2)), attempt(2, measurement(3.0), "x"), attempt(3, None, "x", Verdict.race)], 1),
    ],
    ids=[
        "none",
        "none passed",
        "passed, not measured",
        "measured beats not measured",
        "not measured does not beat measured",
        "the earlier of equals",
        "device where both have it",
        "eager where one lacks device",
        "right only sometimes is wrong",
    ],
)
def test_best(attempts: list[Attempt], wins: int | None) -> None:
    leader = best(attempts)
    assert (leader.number if leader else None) == wins


@pytest.mark.parametrize(
    ("official", "speedup", "met"),
    [
        (None, None, False),
        (evaluation(verdict=Verdict.race), None, False),
        (evaluation(), None, True),
        (evaluation(), 1.0, False),
        (evaluation(measured=measurement(1.0)), 1.0, False),
        (evaluation(measured=measurement(1.01)), 1.0, True),
        (evaluation(measured=measurement(1.5, 0.9)), 1.0, False),
        (evaluation(measured=measurement(0.9, 1.1)), 1.0, True),
    ],
)
def test_target_met(official: Evaluation | None, speedup: float | None, met: bool) -> None:
    assert target_met(official, Target(speedup=speedup)) is met
