"""Diagnosis with real ranks: what it leaves behind, and what only calling again can tell."""

import pytest

from harness.evaluate import Sandbox
from harness.types import Backend, Candidate, Limits, Request, Verdict

LIMITS = Limits(load_s=8, first_call_s=8, call_s=5)
SUM = """
import torch
import torch.distributed as dist
calls = [0]
def solution(tensor):
    calls[0] += 1
    out = tensor.clone()
    dist.all_reduce(out)
    return CHANGED
"""


@pytest.fixture(scope="module")
def box():
    with Sandbox("cpu", 2, LIMITS) as made:
        yield made


def evaluate(box, changed, **changes):
    candidate = Candidate(source=SUM.replace("CHANGED", changed), backend=Backend.cpp)
    settings = {"problem": 1, "case": "tiny", "platform": "cpu", "world_size": 2, "dtype": "float32", "timing": False}
    return box.evaluate(Request(candidate=candidate, limits=LIMITS, **(settings | changes)))


def test_probes_leave_nothing_behind_for_the_next_candidate(box):
    odd = evaluate(box, "out.abs().sqrt() * out.sin()")
    assert odd.verdict is Verdict.wrong_values and [finding.cause for finding in odd.findings] == ["unknown"]
    assert odd.stage_s["diagnosis"] > 0
    honest = evaluate(box, "out")
    assert honest.passed and honest.findings == (), honest.summary


def test_an_output_that_is_right_the_second_time(box):
    found = evaluate(box, "out if calls[0] % 2 == 0 else out * torch.rand(())").findings
    assert "differs from call to call" in [finding.cause for finding in found]
    assert any("second call on the same inputs was right" in finding.text for finding in found)


def test_an_output_that_does_not_hang_on_the_peers(box):
    evaluation = evaluate(box, "tensor.sin() + tensor.cos()")
    (found,) = [finding for finding in evaluation.findings if finding.cause == "no influence"]
    assert "does not change with" in found.text and "((r + 1) mod W)" in found.text


def test_a_probe_that_never_returns_costs_seconds_and_no_verdict(box):
    hang = "out * out if calls[0] < 2 else [dist.barrier() for _ in range(9 + 9 * dist.get_rank())] and out"
    evaluation = evaluate(box, hang)
    assert evaluation.verdict is Verdict.wrong_values
    assert [finding.cause for finding in evaluation.findings] == ["unknown"]
    assert evaluate(box, "out").passed
