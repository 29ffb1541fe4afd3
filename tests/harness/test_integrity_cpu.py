"""Every cheating candidate gets a verdict that is right for it, every honest one passes, timing included. Two ranks and
float32 here; `scripts/integrity` runs more ranks, more types, repeats and mixtures."""

import json
import os
import subprocess
import sys

import pytest

from harness import jail
from harness.evaluate import Sandbox
from harness.types import Limits, Verdict
from tests.candidates import TESTS, folder
from tests.processes import descendants

EVIL, HONEST = folder("evil", "cpu"), folder("honest", "cpu")
# Short enough to test hangs, long enough for a busy machine to answer.
LIMITS = Limits(load_s=6, first_call_s=4, call_s=4)


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox("cpu", 2, LIMITS) as box:
        yield box


@pytest.mark.parametrize("example", EVIL, ids=lambda e: e.name)
def test_a_cheat_gets_its_verdict(example, sandbox):
    assert example.evil, f"{example.path.name} does not say what is expected"
    evaluation = sandbox.evaluate(example.request("cpu", 2, "float32", LIMITS))
    assert example.right(evaluation), evaluation.summary
    assert evaluation.summary and "\n" not in evaluation.summary
    assert evaluation.passed or evaluation.measurement is None


@pytest.mark.parametrize("name", ["p01_continues_itself", "p01_nested_namespace_burner"])
def test_without_a_control_group_it_gets_the_same(name, monkeypatch):
    found = jail.tried().model_copy(update={"groups": None})
    monkeypatch.setattr(jail, "tried", lambda: found)
    (example,) = (example for example in EVIL if example.name == name)
    with Sandbox("cpu", 2, LIMITS) as box:
        evaluation = box.evaluate(example.request("cpu", 2, "float32", LIMITS))
    assert jail.CONTROL_GROUP not in evaluation.environment.isolation
    assert evaluation.verdict in example.expected, evaluation.summary


@pytest.mark.parametrize("example", HONEST, ids=lambda e: e.name)
def test_an_honest_candidate_passes(example, sandbox):
    assert example.expected == (Verdict.passed,)
    evaluation = sandbox.evaluate(example.request("cpu", 2, "float32", LIMITS, timing=True))
    assert evaluation.passed, evaluation.summary
    assert evaluation.measurement is not None


def test_cheats_leave_no_process_behind():
    before = set(descendants(os.getpid()))
    daemons = [example for example in EVIL if example.name in ("p01_orphans", "p01_fork_bomb")]
    with Sandbox("cpu", 2, LIMITS) as own:
        for example in daemons:
            own.evaluate(example.request("cpu", 2, "float32", LIMITS), last=True)
    assert set(descendants(os.getpid())) <= before


def test_the_script_reports_verdicts_and_what_is_left(tmp_path):
    """Left-over files are the whole machine's, where other tests run: they are not looked at."""
    out = tmp_path / "integrity.json"
    names = ["p01_constant_output", "p01_dropped_rank", "p01_ring_of_outputs"]
    options = ["--repeats", "2", "--timed-every", "2", "--mixed", "3", "--witness", names[2], "--out", str(out)]
    command = [sys.executable, "-m", "tests.integrity", "--only", *names, *options]
    done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, timeout=180)
    assert out.exists(), done.stderr
    document = json.loads(out.read_text())
    assert [(row["name"], row["got"]) for row in document["rows"]] == [
        (names[0], "wrong_values"), (names[1], "wrong_values"), (names[2], "passed"), (names[2], "passed"),
    ]  # fmt: skip
    assert [row["timing"] for row in document["rows"]] == [False, False, True, False]
    assert document["mixed"]["verdicts"] == {"wrong_values": 3}
    assert [(row["got"], row["summary"]) for row in document["mixed"]["wrong"]] == []
    assert document["mixed"]["after"]["speedup"]["value"] > 0
    assert "processes" not in document["left_over"]
