"""Timed outputs, claims seen from outside and the exchange of bytes, with real ranks and with hostile values."""

import os

import pytest
import torch

from harness import diagnosis
from harness.errors import HarnessError, SandboxError
from harness.evaluate import Sandbox
from harness.exchange import Exchange, MalformedError
from harness.measure import Alternation, Block
from harness.numerics import likeness
from harness.pair import FailedError
from harness.platforms import Noise, Plan
from harness.timing import undisturbed
from harness.types import Backend, Candidate, Limits, Request, Stage, Verdict

LIMITS = Limits(load_s=5, first_call_s=5, call_s=5)
HONEST = """
import torch.distributed as dist
def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    return out
"""


@pytest.fixture(scope="module")
def box():
    with Sandbox("cpu", 2, LIMITS) as made:
        yield made


def request(source: str, **changes) -> Request:
    candidate = Candidate(source=source, backend=Backend.cpp)
    settings = {"case": "tiny", "platform": "cpu", "world_size": 2, "dtype": "float32", "trials": 2, "limits": LIMITS}
    return Request(candidate=candidate, problem=1, **(settings | changes))


def test_timed_outputs_are_audited_and_seen_from_outside(box):
    evaluation = box.evaluate(request(HONEST))
    assert evaluation.passed, evaluation.summary
    timing = evaluation.measurement.eager
    assert timing.audited >= 8
    assert timing.outside_us > 0
    assert evaluation.uses_nccl


def test_a_run_may_refuse_collectives(box):
    evaluation = box.evaluate(request(HONEST, collectives="refuse"))
    assert evaluation.verdict is Verdict.policy and evaluation.uses_nccl
    kit = HONEST.replace("import torch.distributed as dist", "from harness import kit").replace(
        "dist.all_reduce(out)",
        "buf = kit.symmetric(out.shape, out.dtype); buf.local.copy_(out); buf.barrier()\n"
        "    out = sum(buf.peer(r) for r in range(kit.world_size())); buf.barrier()",
    )
    allowed = box.evaluate(request(kit, collectives="refuse", timing=False))
    assert allowed.passed and not allowed.uses_nccl, allowed.summary


def test_calls_that_are_slow_are_not_stuck_in_a_burst(box):
    """Each takes less than the deadline of a call, those of a burst together take more."""
    slow = "import time\n" + HONEST.replace("    out = ", "    time.sleep(0.3)\n    out = ")
    limits = LIMITS.model_copy(update={"call_s": 2.0})
    evaluation = box.evaluate(request(slow, timing=False, limits=limits))
    assert evaluation.passed, evaluation.summary


def test_memory_that_is_kept_for_new_inputs_only_is_no_leak(box):
    """As libraries keep what they have compiled for a shape: problem 32's inputs have other shapes in every call, and
    its reference holds up to 2.8 MiB more after each, until they come again."""
    keeps = HONEST.replace(
        "    out = ", "    KEPT.setdefault(tensor.numpy().tobytes(), torch.ones(1 << 19))\n    out = "
    ).replace("\ndef", "\nimport torch\nKEPT = {}\ndef", 1)
    evaluation = box.evaluate(request(keeps, timing=False))
    assert evaluation.passed, evaluation.summary
    leaks = keeps.replace("tensor.numpy().tobytes()", "len(KEPT)")
    evaluation = box.evaluate(request(leaks, timing=False))
    assert evaluation.verdict is Verdict.out_of_memory and "2.0 MiB more host memory" in evaluation.summary


def test_wrong_only_when_timed(box):
    """Right in everything that comes before: the timed loop runs with garbage collection off."""
    late = HONEST.replace("    return out", "    return out if gc.isenabled() else out + 1").replace(
        "import torch.distributed as dist", "import gc\nimport torch.distributed as dist"
    )
    evaluation = box.evaluate(request(late))
    assert evaluation.verdict is Verdict.race and evaluation.stage is Stage.timing, evaluation.summary
    assert "output of a timed call" in evaluation.summary


@pytest.mark.parametrize(("times", "seen"), [(2, "seen from outside"), (40, "by the supervisor's clock")])
def test_clocks_that_run_slow_are_seen_from_outside(box, times, seen):
    """A candidate that slows the clock of its own process down, below anything that a tripwire sees: by a library that
    stands before libc would be one way; here it answers for the harness, whose frames a handler of signals is given."""
    forged = """
import signal, torch.distributed as dist
def forge(number, frame):
    while frame is not None:
        if frame.f_code.co_name == "time_eager":
            times = frame.f_locals.get("times")
            if times:
                times[:] = [t / 10 if t > 50 else t for t in times]
        frame = frame.f_back
signal.signal(signal.SIGUSR2, forge)
def solution(tensor):
    signal.raise_signal(signal.SIGUSR2)
    for _ in range(TIMES):
        dist.all_reduce(out := tensor.clone())
    return out
"""
    evaluation = box.evaluate(request(forged.replace("TIMES", str(times))))
    assert evaluation.verdict is Verdict.integrity, evaluation.summary
    assert seen in evaluation.summary


@pytest.mark.parametrize("size", [0, 100, 4095])
def test_a_file_that_is_cut_off_is_malformed_and_ends_nobody(tmp_path, size):
    """A reader that mapped it would die of SIGBUS."""
    writer, reader = Exchange(tmp_path / "f"), Exchange(tmp_path / "f")
    tree = writer.write(torch.arange(1024.0))
    assert float(reader.read(tree, "cpu")[3]) == 3
    os.truncate(tmp_path / "f", size)
    with pytest.raises(MalformedError):
        reader.read(tree, "cpu")


def test_likeness_tells_whose_values_are_there():
    draw = torch.Generator().manual_seed(0)
    right, former = torch.randn(64, 8, generator=draw), torch.randn(64, 8, generator=draw)
    how = {"exact": False, "check": "oracle", "world_size": 2}
    as_known = lambda t: (t, t.double(), None)  # noqa: E731
    whole = likeness(former.clone(), as_known(right), as_known(former), trial=0, **how)
    assert whole == (True, 1.0)
    half = torch.cat([right[:32], former[32:]])
    assert likeness(half, as_known(right), as_known(former), trial=0, **how) == (False, 1.0)
    mixed = torch.cat([right[:32], former[32:48], torch.zeros(16, 8)])
    whole, share = likeness(mixed, as_known(right), as_known(former), trial=0, **how)
    assert not whole and 0.4 < share < 0.6


@pytest.mark.parametrize(
    ("ranks", "word"),
    [
        ([(False, 1.0), (False, 0.99)], "; stale: the wrong values are right for the call 1 before"),
        ([(False, 0.6), (False, 0.2)], "torn: 40%"),
        ([(False, 0.0), (False, 0.0)], "not those of any other call"),
    ],
)
def test_wrong_values_are_called_stale_or_torn(ranks, word):
    said, whole = diagnosis.judge_likeness(["the call 1 before"], [ranks])
    assert word in said and whole is None


def test_a_whole_output_of_another_call_is_named():
    said, whole = diagnosis.judge_likeness(["a", "b"], [[(False, 0.1)], [(True, 1.0)]])
    assert whole == 1 and "the whole output is the right one for b" in said


def blocks(us: float) -> list[Block]:
    return [Block([[us] * 5, [us] * 5]) for _ in range(3)]


def test_a_reference_that_was_slowed_is_replaced_or_refused():
    found = Alternation(blocks(100.0) * 2, blocks(50.0) * 2, Plan(5))
    assert undisturbed(found, [], blocks(98.0), 1.05, 1.5) == (found, None)
    for there in ([], blocks(101.0)):
        replaced, slowed = undisturbed(found, there, blocks(80.0), 1.05, 1.5)
        assert replaced.reference[0].times_us[0][0] == 80.0 and slowed == pytest.approx(1.25)
        assert replaced.timing(Noise(0.0, 0.0)).speedup.value == pytest.approx(1.6)
        with pytest.raises(FailedError, match=r"2\.00x as long"):
            undisturbed(found, there, blocks(50.0), 1.05, 1.5)


def test_a_machine_whose_pace_changes_is_not_taken_for_a_candidate_that_slows_it():
    found = Alternation(blocks(100.0) * 2, blocks(50.0) * 2, Plan(5))
    assert undisturbed(found, blocks(80.0), blocks(80.0), 1.05, 1.5) == (found, None)
    with pytest.raises(SandboxError, match="pace"):
        undisturbed(found, blocks(50.0), blocks(50.0), 1.05, 1.5)


def test_isolation_strict_is_all_or_nothing(monkeypatch):
    monkeypatch.setattr("harness.jail.tried", lambda program=None: __import__("harness.jail").jail.Jail())
    with pytest.raises(HarnessError, match="strict"), Sandbox("cpu", 2, LIMITS, "strict") as own:
        own.evaluate(request(HONEST))
