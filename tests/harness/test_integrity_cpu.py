"""Every cheating candidate gets a verdict that is right for it, every honest one passes, timing included. Two ranks and
float32 here; `scripts/integrity` runs more ranks, more types, repeats and mixtures."""

import os

import pytest

from harness.evaluate import Sandbox
from harness.types import Limits, Verdict
from tests.candidates import folder
from tests.processes import descendants

EVIL, HONEST = folder("evil", "cpu"), folder("honest", "cpu")
# Short enough to test hangs, long enough for a busy machine to answer.
LIMITS = Limits(load_s=2.5, first_call_s=2.5, call_s=2.5)


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox("cpu", 2, LIMITS) as box:
        yield box


@pytest.mark.parametrize("example", EVIL, ids=lambda e: e.name)
def test_a_cheat_gets_its_verdict(example, sandbox):
    assert example.evil, f"{example.path.name} does not say what is expected"
    evaluation = sandbox.evaluate(example.request("cpu", 2, "float32", LIMITS))
    assert evaluation.verdict in example.expected, evaluation.summary
    assert evaluation.summary and "\n" not in evaluation.summary
    assert evaluation.measurement is None


@pytest.mark.parametrize("example", HONEST, ids=lambda e: e.name)
def test_an_honest_candidate_passes(example, sandbox):
    assert example.expected == (Verdict.passed,)
    evaluation = sandbox.evaluate(example.request("cpu", 2, "float32", LIMITS, timing=True))
    assert evaluation.passed, evaluation.summary
    assert evaluation.measurement is not None


def test_the_catalogue_is_covered():
    """Every row that can exist without a GPU. B8 is about CUDA graphs; C6 and D10 are no cheats but flags and legal."""
    rows = {row for example in EVIL for row in example.rows}
    there = [f"A{i}" for i in range(1, 12)] + [f"B{i}" for i in range(1, 10)]
    there += [f"C{i}" for i in range(1, 8)] + [f"D{i}" for i in range(1, 13)]
    assert set(there) - rows == {"B8", "C6", "D10"}
    assert rows <= set(there)


def test_cheats_leave_no_process_behind():
    before = set(descendants(os.getpid()))
    daemons = [example for example in EVIL if example.name in ("p01_orphans", "p01_fork_bomb")]
    with Sandbox("cpu", 2, LIMITS) as own:
        for example in daemons:
            own.evaluate(example.request("cpu", 2, "float32", LIMITS), last=True)
    assert set(descendants(os.getpid())) <= before
