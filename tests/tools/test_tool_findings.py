"""How causes are told: first, with their evidence and line, and once."""

import json
import re

import pytest

from harness import causes
from harness.types import BuildReport, Environment, Evaluation, Finding, RankReport, Stage, Verdict
from tests import compiler_logs
from tools import catalogue
from tools.text import evaluation_text, failure_text

HALF = compiler_logs.read()["half_header"]
BRACE = compiler_logs.read()["brace"]
WILD = "AcceleratorError: CUDA error: an illegal memory access was encountered"


@pytest.fixture
def call(session):
    return lambda name, **arguments: catalogue.call(session, name, json.dumps(arguments))


def failing_build(recorded, moved: int = 0):
    """The sandbox's answer to `compile` for a recorded source, `moved` lines further down."""

    def answer(candidate):
        log = re.sub(r"(candidate\.py[:(])(\d+)", lambda match: f"{match[1]}{int(match[2]) + moved}", recorded.log)
        found = causes.explain(Verdict.compile_error, "compiler: x", log, (), candidate.source)
        return BuildReport(
            candidate=candidate.hash, verdict=Verdict.compile_error, summary="compiler: x", log=log, findings=found
        )

    return answer


def evaluation(verdict: Verdict, candidate: str, findings, ranks=(), **changes) -> Evaluation:
    fields = {
        "candidate": candidate, "backend": "cuda", "problem": 1, "name": "allreduce", "case": "tiny",
        "sizes": {"m": 8}, "world_size": max(1, len(ranks)), "dtype": "bfloat16", "check": "oracle", "trials": 3,
        "verdict": verdict, "stage": "correctness", "summary": "all ranks: something", "ranks": ranks,
        "findings": findings, "environment": Environment(
            platform="cuda", devices=("gpu",), torch="2", python="3", harness="0", isolation=()
        ),
    }  # fmt: skip
    return Evaluation.model_validate(fields | changes)


def wild(ranks: int, candidate: str = "x") -> Evaluation:
    """Every rank with the same error, which is explained by inference."""
    reports = tuple(
        RankReport(
            rank=rank, ok=False, stage=Stage.correctness, calls_completed=3, message=WILD, line=11,
            stack="candidate.py:11 in solution: f(x)\n" * 20, stderr="printed\n" * 20,
        )
        for rank in range(ranks)
    )  # fmt: skip
    found = causes.explain(Verdict.runtime_error, "", "", reports, "")
    return evaluation(Verdict.runtime_error, candidate, found, reports)


def test_compile_tells_the_cause_its_evidence_and_its_line_first(call, sandbox):
    call("write_candidate", source=HALF.candidate)
    sandbox.answers = [failing_build(HALF)]
    result = call("compile")
    assert result.text.splitlines() == [
        "COMPILE_ERROR",
        "missing header: `half` needs `#include <cuda_fp16.h>` (line 11)",
        '    candidate.py:11: error: identifier "half" is undefined',
        "       9 | #",
        "      10 | #",
        "  >   11 | __global__ void k(const half* x, float* y) { y[0] = __half2float(x[0]); }",
        '      12 | """  # end of SOURCE = r"""',
        'then candidate.py:11: error: identifier "__half2float" is undefined',
    ]
    assert result.data["build"]["findings"][0]["cause"] == "missing header"
    inspected = call("inspect_failure").text.splitlines()
    assert inspected == ["attempt 1: compile_error at stage build", *result.text.splitlines()[1:]]


def test_an_error_that_an_earlier_attempt_had_is_told_once(call, sandbox):
    call("write_candidate", source=HALF.candidate)
    sandbox.answers = [failing_build(HALF), failing_build(HALF, 1), failing_build(BRACE), failing_build(HALF)]
    call("compile")
    call("write_candidate", source="#\n" + HALF.candidate)
    again = "the same error as in attempt 1: missing header: `half` needs `#include <cuda_fp16.h>` (line 12)"
    assert call("compile").text.splitlines() == ["COMPILE_ERROR", again], "though it has moved by a line"
    assert call("inspect_failure").text.splitlines() == ["attempt 2: compile_error at stage build", again]
    call("write_candidate", source=BRACE.candidate)
    assert "the same error" not in call("compile").text
    call("write_candidate", source=HALF.candidate)
    assert "the same error as in attempt 2: " in call("compile").text


def test_the_same_attempt_does_not_repeat_itself(call, sandbox):
    call("write_candidate", source=HALF.candidate)
    sandbox.answers = [failing_build(HALF), failing_build(HALF)]
    assert call("compile").text == call("compile").text


def test_a_run_tells_what_was_inferred_and_what_an_earlier_run_had(call, sandbox):
    for number in (1, 2):
        call("write_candidate", source=HALF.candidate + "#\n" * number)
        sandbox.answers = [wild(2, candidate=str(number))]
        text = call("run_benchmark").text
        lines = text.splitlines()
        assert lines[0] == "RUNTIME_ERROR at stage correctness (case tiny, bfloat16, 2 ranks)"
        assert lines[1].endswith("(line 11) (inferred)") and lines[-1].startswith("`inspect_failure`")
        if number == 1:
            assert lines[1].startswith("wild address: ") and lines[2] == f"    candidate.py:11: {WILD}"
            assert "  >   11 | __global__" in text
        else:
            assert lines[1].startswith("the same error as in attempt 1: wild address: ") and len(lines) == 3
    shown = call("inspect_failure").text
    assert "the same error as in attempt 1" in shown and f"rank 1: {WILD}" in shown and "candidate.py" not in shown


def test_an_earlier_attempt_that_is_inspected_is_not_the_current_one(call, sandbox):
    call("write_candidate", source=HALF.candidate)
    sandbox.answers = [failing_build(HALF)]
    call("compile")
    assert call("inspect_failure").candidate.source == HALF.candidate
    call("write_candidate", source=HALF.candidate + "#\n")
    inspected = call("inspect_failure")
    assert inspected.text.startswith("attempt 1:") and inspected.candidate is None


@pytest.mark.parametrize("ranks", [1, 2, 8, 64])
@pytest.mark.parametrize("before", [None, 3])
def test_everything_is_at_most_a_screen(ranks, before):
    one = wild(ranks)
    many = one.model_copy(update={"findings": one.findings * 9, "log": HALF.log * 40})
    for text in (failure_text(many, HALF.candidate, before), evaluation_text(many, HALF.candidate, before)):
        assert len(text.splitlines()) <= 60 and max(map(len, text.splitlines())) <= 450
        assert "wild address" in text.splitlines()[1]


def test_ranks_that_failed_alike_are_shown_once():
    lines = failure_text(wild(4), HALF.candidate).splitlines()
    assert [line for line in lines if line.startswith("rank ")] == [
        f"rank 0: {WILD} (calls completed: 3)",
        *(f"rank {rank}: as rank 0 (calls completed: 3)" for rank in (1, 2, 3)),
    ]


def test_findings_on_wrong_values_stand_before_the_figures():
    found = (
        Finding(cause="rank left out", text="rank 3 is missing in every sum", evidence="1.5 for 2", certain=False),
    )
    report = RankReport(rank=0, ok=False, stage=Stage.correctness, message="wrong values", stack="", line=None)
    one = evaluation(Verdict.wrong_values, "x", found, (report,), summary="rank 0: 4 of 16 elements of out wrong")
    said = ["rank left out: rank 3 is missing in every sum (inferred)", "    1.5 for 2"]
    lines = evaluation_text(one, "").splitlines()
    assert lines[0].endswith("rank 0: 4 of 16 elements of out wrong") and lines[1:3] == said
    lines = failure_text(one, "").splitlines()
    assert lines[1:4] == ["rank 0: 4 of 16 elements of out wrong", *said]
    assert any(line.startswith("rank 0: wrong values") for line in lines)


def test_another_rank_is_another_error(session):
    """Evidence in general words may be the same for different findings."""

    def left_out(rank):
        text, evidence = f"rank {rank}'s part is missing", "true of at least 95% of the 560 wrong elements there"
        return (Finding(cause="rank left out", text=text, evidence=evidence),)

    first = session.write("a = 1\n")
    first.latest = evaluation(Verdict.wrong_values, first.candidate.hash, left_out(3))
    second = session.write("a = 2\n")
    assert session.before(second, left_out(3)) == 1
    assert session.before(second, left_out(2)) is None
