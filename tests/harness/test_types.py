"""What crosses processes: frozen, strict, and unable to say nonsense."""

import json
import math

import pytest
from pydantic import ValidationError

from harness.types import (
    Backend,
    Candidate,
    Environment,
    Evaluation,
    Latency,
    Limits,
    Measurement,
    Mismatch,
    Ratio,
    Request,
    Stage,
    Timing,
    Verdict,
    to_json,
)

CANDIDATE = Candidate(source="def solution(x):\n    return x\n", backend=Backend.cpp)
LATENCY = Latency(median_us=10, p10_us=9, p90_us=12, min_us=8, samples=3, skew_us=1)
TIMING = Timing(candidate=LATENCY, reference=LATENCY, speedup=Ratio(value=1, low=0.9, high=1.1))
MEASUREMENT = Measurement(protocol="ringsmith", eager=TIMING)


def evaluation(**changes) -> Evaluation:
    fields = {
        "candidate": CANDIDATE.hash,
        "backend": "cpp",
        "problem": 1,
        "name": "allreduce",
        "case": "pkb",
        "sizes": {"m": 4},
        "world_size": 2,
        "dtype": "bfloat16",
        "check": "oracle",
        "trials": 3,
        "verdict": "passed",
        "stage": "timing",
        "summary": "correct",
        "environment": Environment(
            platform="cpu", devices=("cpu",), torch="2", python="3.11", harness="0.1", isolation=()
        ),
    }
    return Evaluation.model_validate(fields | changes)


def test_a_candidate_is_named_by_its_content():
    other = Candidate(source=CANDIDATE.source, backend=Backend.cuda)
    assert CANDIDATE.hash == Candidate(source=CANDIDATE.source, backend=Backend.cpp).hash != other.hash
    assert len(CANDIDATE.hash) == 16 and int(CANDIDATE.hash, 16)
    assert Candidate(source=CANDIDATE.source + "\n", backend=Backend.cpp).hash != CANDIDATE.hash


def test_only_what_passed_is_measured():
    assert evaluation(measurement=MEASUREMENT).passed
    for verdict in Verdict:
        if verdict is not Verdict.passed:
            assert not evaluation(verdict=verdict).passed
            with pytest.raises(ValidationError, match="only for a candidate that passed"):
                evaluation(verdict=verdict, measurement=MEASUREMENT)


def test_everything_is_frozen_and_nothing_is_extra():
    with pytest.raises(ValidationError):
        CANDIDATE.source = "x"
    with pytest.raises(ValidationError):
        Candidate(source="", backend=Backend.cpp, author="me")
    with pytest.raises(ValidationError):
        evaluation(score=1.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"world_size": 0},
        {"world_size": 65},
        {"trials": 0},
        {"trials": 101},
        {"platform": "rocm"},
        {"dtype": "int8"},
        {"protocol": "fast"},
        {"check": "none"},
    ],
    ids=str,
)
def test_a_request_out_of_range_is_refused(changes):
    fields = {"candidate": CANDIDATE, "problem": 1, "platform": "cpu", "world_size": 2, "dtype": "bfloat16"}
    Request.model_validate(fields)
    with pytest.raises(ValidationError):
        Request.model_validate(fields | changes)


def test_the_floor_is_compared_with_the_best_latency_known():
    fast = TIMING.model_copy(update={"candidate": LATENCY.model_copy(update={"median_us": 5.0})})
    measured = Measurement(protocol="ringsmith", eager=TIMING, sol_us=2.0, bound_by="HBM")
    assert measured.sol_fraction == 0.2
    assert measured.model_copy(update={"device": fast}).sol_fraction == 0.4
    assert MEASUREMENT.sol_fraction is None and MEASUREMENT.achievable_fraction is None
    assert measured.model_copy(update={"achievable_us": 4.0, "device": fast}).achievable_fraction == 0.8


def test_an_evaluation_survives_json():
    mismatch = Mismatch(
        trial=0,
        output="out",
        shape=(2, 2),
        wrong=1,
        total=4,
        nonfinite=1,
        max_error=math.inf,
        max_allowed=0.5,
        rms_error=math.nan,
        rms_allowed=0.1,
        first=({"index": (0, 1), "got": -math.inf, "expected": 1.0},),
        chunks_wrong=(0.5, 0.0),
    )
    report = {"rank": 0, "ok": False, "stage": "correctness", "mismatches": (mismatch,)}
    before = evaluation(verdict="wrong_values", ranks=(report,), stage_s={"build": 1.5})
    text = json.dumps(to_json(before), allow_nan=False)
    after = Evaluation.model_validate_json(text)
    assert Evaluation.model_validate_json(before.model_dump_json()) is not None
    again = after.ranks[0].mismatches[0]
    assert again.max_error == math.inf and math.isnan(again.rms_error) and again.first[0].got == -math.inf
    assert json.dumps(to_json(after)) == text
    assert after.stage is Stage.timing and after.verdict is Verdict.wrong_values


def test_verdicts_and_stages_are_those_documented():
    assert {v.value for v in Verdict} == {
        "passed", "compile_error", "api_error", "shape_error", "runtime_error", "out_of_memory", "wrong_values",
        "race", "deadlock", "timeout", "integrity", "policy",
    }  # fmt: skip
    assert [s.value for s in Stage] == ["policy", "build", "load", "correctness", "stress", "timing"]


def test_a_record_from_before_mechanisms_were_told_still_loads():
    old = to_json(evaluation())
    del old["mechanisms"]
    assert Evaluation.model_validate(old).mechanisms == ()
    assert to_json(evaluation(mechanisms=("copy engine", "NCCL")))["mechanisms"] == ["copy engine", "NCCL"]
    with pytest.raises(ValidationError):
        evaluation(mechanisms=("carrier pigeon",))


def test_the_first_call_of_many_ranks_may_take_longer():
    limits = Limits(first_call_s=10, call_s=3)
    assert [limits.seconds_of_first_call(ranks) for ranks in (1, 4, 8)] == [10, 10, 20]
