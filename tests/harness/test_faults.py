"""The planted faults of tests/faults: each can be planted, and a few of each kind get the verdict that they should."""

import ast
import re

import pytest

from harness.evaluate import Sandbox
from harness.types import BACKENDS, Evaluation, Finding, Limits
from problems import catalogue
from tests.faults.__main__ import SETS, set_of, table
from tests.faults.fault import CORRECT, ROOT, every
from tests.faults.faults import FAULTS
from tests.faults.held_out import HELD_OUT

LIMITS = Limits(load_s=10.0, first_call_s=4.0, call_s=4.0)
QUICK = (
    "p01_last_rank_left_out",
    "p01_own_added_twice",
    "p01_bf16_on_the_wire",
    "p01_ring_misses_last_step",
    "p02_own_data_in_every_slot",
    "p03_flag_never_raised_again",
    "p07_block_of_the_next_rank",
    "p16_slots_one_too_few",
    "p18_epsilon_left_out",
    "p41_own_parameters_on_every_rank",
    "p45_publishes_once",
    "p45_sum_for_mean",
    "p54_scale_left_out",
    "p73_local_maximum_only",
    "p87_halos_swapped",
    "p01_undeclared_name",
    "p07_invented_kit_function",
)


def test_there_are_enough_of_them():
    assert len({fault.name for fault in SETS["all"]}) == len(SETS["all"])
    cpu, cuda = ([fault for fault in SETS["all"] if fault.platform == platform] for platform in ("cpu", "cuda"))
    assert len(cpu) >= 60 and len({fault.problem for fault in cpu}) >= 20
    assert len(cuda) >= 6
    assert len(HELD_OUT) >= 30 and len({fault.problem for fault in HELD_OUT}) >= 12
    assert set_of(FAULTS[0]) == "first" and set_of(HELD_OUT[0]) == "held-out"
    assert {fault.problem for fault in SETS["all"]} <= {entry.number for entry in catalogue.entries()}
    bases = {path.name for path in (ROOT / CORRECT).glob("*.py")}
    assert {fault.path.name for fault in cpu} == bases


@pytest.mark.parametrize("fault", SETS["all"], ids=lambda fault: fault.name)
def test_it_can_be_planted(fault):
    planted = fault.source()  # raises if a replacement does not match exactly once
    assert planted != fault.path.read_text(encoding="utf-8")
    compile(planted, fault.name, "exec")
    assert ast.get_docstring(ast.parse(planted)) == ast.get_docstring(ast.parse(fault.path.read_text(encoding="utf-8")))
    assert fault.name.startswith(fault.path.name[:4])
    assert "passed" not in fault.verdicts
    for ranks in (2, 4, 8):
        pattern = fault.said(fault.names, ranks)
        assert "<" not in pattern
        assert re.search(
            pattern, fault.said(fault.planted, ranks), re.I | re.S
        )  # to say what was planted is to name it
        # Neither silence nor talk about something else names a cause.
        assert not re.search(pattern, "timeout: the candidate was still busy at the deadline", re.I | re.S)


def test_a_finding_names_the_cause(evaluation):
    fault = next(fault for fault in FAULTS if fault.name == "p01_last_rank_left_out")
    assert fault.named(evaluation(())) is None
    other = Finding(cause="scaled", text="out is 0.75 times what is right on all ranks")
    right = Finding(cause="rank left out", text="on all ranks rank 3's matrix is missing from the sum")
    assert fault.named(evaluation((other,))) is None
    assert fault.named(evaluation((other, right))) == 2
    assert re.search(every("b", "a"), "a b") and not re.search(every("b", "c"), "a b")


def test_the_table_has_a_row_for_each_fault():
    finding = {"cause": "stale", "text": "a | b", "evidence": "", "certain": True}
    row = {
        "what": "fault",
        "set": "first",
        "planted": "Late.",
        "problem": 7,
        "world_size": 4,
        "verdict": "race",
        "named": None,
    }
    named = row | {"findings": [finding], "named": 1}
    rows = [row | {"findings": []}, named, named | {"set": "held-out"}, {"what": "base"}]
    lines = table({"rows": rows}).splitlines()
    assert lines[2:] == [
        "| Late. | first | 7 | 4 | race | none | no |",
        "| Late. | first | 7 | 4 | race | stale: a \\| b | yes |",
        "| Late. | held-out | 7 | 4 | race | stale: a \\| b | yes |",
        "",
        "first: 1 of 2 named.",
        "held-out: 1 of 1 named.",
    ]


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox("cpu", 2, LIMITS) as box:
        yield box


@pytest.mark.parametrize("name", QUICK)
def test_a_fault_gets_its_verdict_and_is_named(name, sandbox):
    fault = next(fault for fault in FAULTS if fault.name == name)
    result = sandbox.evaluate(fault.request(2, LIMITS))
    assert result.verdict in fault.verdicts, result.summary
    assert fault.named(result) is not None, result.findings


@pytest.fixture
def evaluation():
    """`evaluation(findings)`: of a failure on 4 ranks."""

    def make(findings):
        return Evaluation.model_construct(
            world_size=4, backend=BACKENDS["cpu"][0], findings=tuple(findings), verdict="wrong_values"
        )

    return make
