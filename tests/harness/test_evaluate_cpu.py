"""Real ranks on the cpu platform: every kind of candidate gets its verdict, and nothing is left behind."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.evaluate import Sandbox, reference_candidate
from harness.types import Backend, Candidate, Limits, Request, Stage, Verdict
from problems import catalogue
from problems.spec import ProblemError

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = sorted((ROOT / "prompts" / "examples" / "cpp").glob("*.py"))
# Short, as some hang here on purpose; long enough for ranks that share their cores with other tests.
LIMITS = Limits(load_s=6.0, first_call_s=6.0, call_s=6.0)

SHARED_BY_ALL = """
import torch, torch.distributed as dist
def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    return out
"""


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox("cpu", 2, LIMITS) as box:
        yield box


def request(candidate: Candidate | str, problem: int = 1, **changes) -> Request:
    if isinstance(candidate, str):
        candidate = Candidate(source=candidate, backend=Backend.cpp)
    settings = {"case": "tiny", "platform": "cpu", "world_size": 2, "dtype": "float32", "timing": False, "trials": 2}
    return Request(candidate=candidate, problem=problem, limits=LIMITS, **(settings | changes))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_a_worked_example_passes_at_uneven_sizes(path, dtype, sandbox, read_candidate):
    candidate, _ = read_candidate(path, Backend.cpp)
    problem = int(path.stem[1:3])
    evaluation = sandbox.evaluate(request(candidate, problem, case="odd", dtype=dtype))
    assert evaluation.passed, evaluation.summary


@pytest.mark.parametrize("entry", catalogue.entries(), ids=lambda e: e.name)
def test_every_reference_passes_as_a_candidate(entry, sandbox):
    evaluation = sandbox.evaluate(request(reference_candidate(entry), entry.number, dtype="bfloat16"))
    assert evaluation.passed, evaluation.summary


def test_a_measurement_has_both_sides_and_an_interval(sandbox):
    evaluation = sandbox.evaluate(request(SHARED_BY_ALL, timing=True))
    timing = evaluation.measurement.eager
    assert timing.candidate.samples >= 12
    # On a machine with other work the reference may have been slow beside it: then its few blocks without it count.
    assert timing.reference.samples >= (12 if timing.reference_slowed is None else 6)
    assert timing.audited >= 8 and timing.outside_us > 0
    assert timing.speedup.low <= timing.speedup.value <= timing.speedup.high
    assert evaluation.measurement.device is None and evaluation.measurement.device_note
    assert evaluation.stage is Stage.timing
    assert set(evaluation.stage_s) >= {"build", "load", "correctness", "timing"}
    assert evaluation.device_s > 0


def test_the_pkb_protocol_and_check(sandbox):
    evaluation = sandbox.evaluate(request(SHARED_BY_ALL, timing=True, protocol="pkb", check="pkb"))
    assert evaluation.passed and evaluation.measurement.protocol == "pkb"
    assert evaluation.measurement.eager.candidate.samples == 100


def test_a_value_wrong_only_in_back_to_back_calls_is_a_race(sandbox):
    # As if a peer's next call could overtake: right whenever the calls are far apart.
    late = SHARED_BY_ALL.replace(
        "    return out",
        "    now, before = time.monotonic(), last[0]\n    last[:] = [now, out]\n"
        "    return before[1] if now - before[0] < 0.002 and before[1] is not None else out",
    ).replace("before = time.monotonic(), last[0]", "before = time.monotonic(), list(last)")
    evaluation = sandbox.evaluate(request("import time\nlast = [0.0, None]\n" + late, trials=3))
    assert evaluation.verdict is Verdict.race and evaluation.stage is Stage.stress, evaluation.summary
    assert "back to back" in evaluation.summary and "the call 1 before" in evaluation.summary


def test_a_result_kept_by_address_is_found_out(sandbox):
    kept = SHARED_BY_ALL.replace("    return out", "    kept[tensor.data_ptr()] = out\n    return out").replace(
        "    out =", "    if tensor.data_ptr() in kept: return kept[tensor.data_ptr()]\n    out ="
    )
    evaluation = sandbox.evaluate(request("kept = {}\n" + kept))
    assert evaluation.verdict is Verdict.integrity, evaluation.summary
    assert "the whole output is the right one for the inputs that were there before" in evaluation.summary


def test_a_mismatch_names_ranks_elements_and_chunks(sandbox):
    wrong = SHARED_BY_ALL.replace("    return out", "    if dist.get_rank() == 1: out[-1, -1] += 1\n    return out")
    evaluation = sandbox.evaluate(request(wrong))
    good, bad = evaluation.ranks
    assert good.ok and not bad.ok
    (mismatch,) = bad.mismatches
    assert mismatch.wrong == 1 and mismatch.total == evaluation.sizes["m"] * evaluation.sizes["n"]
    assert mismatch.first[0].index == (evaluation.sizes["m"] - 1, evaluation.sizes["n"] - 1)
    assert abs(mismatch.first[0].got - mismatch.first[0].expected - 1) < 1e-5
    assert mismatch.chunks_wrong[0] == 0 and mismatch.chunks_wrong[1] > 0


def test_a_deadlock_names_who_waits_where(sandbox):
    skips = SHARED_BY_ALL.replace("    dist.all_reduce(out)", "    if dist.get_rank() == 0: dist.all_reduce(out)")
    started = time.monotonic()
    evaluation = sandbox.evaluate(request(skips))
    assert time.monotonic() - started < LIMITS.first_call_s + 5
    assert evaluation.verdict is Verdict.deadlock
    waiting, finished = evaluation.ranks
    assert finished.ok and not waiting.ok
    assert skips.splitlines()[waiting.line - 1].strip().startswith("if dist.get_rank() == 0")
    assert "rank 1 finished" in evaluation.summary


def test_a_recursion_through_a_long_line_is_an_error_and_no_forgery(sandbox):
    """A thousand frames with their lines are more than a message may have."""
    found = sandbox.evaluate(request(f"def solution(x):\n    return solution(x) + len({'y' * 12000!r})\n"))
    assert found.verdict is Verdict.runtime_error, found.summary
    assert "RecursionError" in found.summary and found.ranks[0].stack


def test_seeds_differ_from_run_to_run(sandbox):
    """A candidate that remembers an answer on disk cannot reuse it."""
    first = SHARED_BY_ALL.replace("    return out", "    print(float(tensor.sum()))\n    raise ValueError('look')")
    printed = [sandbox.evaluate(request(first)).ranks[0].stderr for _ in range(2)]
    assert printed[0] and printed[0] != printed[1]


def test_no_key_reaches_a_candidate(sandbox, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sekrit")
    source = "import os\ndef solution(tensor):\n    raise ValueError(sorted(os.environ))\n"
    with Sandbox("cpu", 2, LIMITS) as fresh:  # its fork server has the key; its candidates must not
        message = fresh.evaluate(request(source)).ranks[0].message
    assert "PATH" in message and "OPENAI" not in message


def test_requests_that_cannot_be(sandbox):
    with pytest.raises(ProblemError, match="case"):
        sandbox.evaluate(request(SHARED_BY_ALL, case="huge"))
    with pytest.raises(ProblemError):
        sandbox.evaluate(request(SHARED_BY_ALL, problem=999))
    with pytest.raises(UsageError, match="ranks"):
        sandbox.evaluate(request(SHARED_BY_ALL, world_size=3))


def test_three_ranks_on_two_cores():
    with Sandbox("cpu", 3, LIMITS) as box:
        candidate = Candidate(source=EXAMPLES[0].read_text(), backend=Backend.cpp)
        evaluation = box.evaluate(request(candidate, world_size=3, case="odd", timing=True))
        assert evaluation.passed, evaluation.summary


def test_the_supervisor_needs_no_torch():
    """It starts in a fraction of a second and can never hold a CUDA context."""
    code = "import sys, service.cli, service.run, harness.evaluate; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr
