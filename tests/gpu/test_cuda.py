"""Candidates on real GPUs. `scripts/gpu_check` runs this on a machine with at least two; CI has none and skips it.

With RINGSMITH_RESULTS=FILE every Evaluation is appended to it as a JSON line: the table in docs/results.md.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness import machine
from harness.evaluate import Sandbox, reference_candidate
from harness.types import Backend, Candidate, Limits, Request, Verdict
from problems import catalogue

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).resolve().parent.parent.parent
GOOD = sorted(path for kind in ("cuda", "triton") for path in (ROOT / "prompts" / "examples" / kind).glob("p*.py"))
EVIL = sorted((ROOT / "tests" / "evil" / "cuda").glob("p*.py"))
LIMITS = Limits(first_call_s=12)  # a hang costs that; compilation on the first call is not counted
WORLD_SIZE = int(os.environ.get("RINGSMITH_WORLD_SIZE", "4"))


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox("cuda", WORLD_SIZE, LIMITS) as box:
        yield box


def request(candidate: Candidate, problem: int, **changes) -> Request:
    settings = {"case": "pkb", "platform": "cuda", "world_size": WORLD_SIZE, "dtype": "bfloat16", "limits": LIMITS}
    return Request(candidate=candidate, problem=problem, **(settings | changes))


def keep(evaluation, name: str) -> None:
    if path := os.environ.get("RINGSMITH_RESULTS"):
        with open(path, "a") as file:
            file.write(evaluation.model_copy(update={"log": name}).model_dump_json() + "\n")


@pytest.mark.parametrize("case", ["pkb", "large"])
@pytest.mark.parametrize("path", GOOD, ids=lambda p: p.stem)
def test_a_worked_example_passes_and_is_timed(path, case, sandbox, read_candidate):
    candidate, _ = read_candidate(path, Backend(path.parent.name))
    evaluation = sandbox.evaluate(request(candidate, int(path.stem[1:3]), case=case))
    keep(evaluation, path.stem)
    assert evaluation.passed, f"{evaluation.summary}\n{evaluation.log[-3000:]}\n" + "".join(
        f"{r.rank}: {r.message}\n{r.stack}{r.stderr}" for r in evaluation.ranks
    )
    measurement = evaluation.measurement
    if measurement.device is None:  # some references wait for the device
        assert measurement.device_note.startswith("the reference cannot be captured"), measurement.device_note
    best = measurement.device or measurement.eager
    assert measurement.sol_us < best.candidate.min_us
    assert measurement.sol_us < best.reference.min_us


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float16"])
@pytest.mark.parametrize("path", GOOD, ids=lambda p: p.stem)
def test_a_worked_example_passes_at_uneven_sizes(path, dtype, sandbox, read_candidate):
    candidate, _ = read_candidate(path, Backend(path.parent.name))
    evaluation = sandbox.evaluate(request(candidate, int(path.stem[1:3]), case="odd", dtype=dtype, timing=False))
    assert evaluation.passed, evaluation.summary


@pytest.mark.parametrize("entry", catalogue.entries(), ids=lambda e: e.name)
def test_the_reference_passes_as_a_candidate(entry, sandbox):
    evaluation = sandbox.evaluate(request(reference_candidate(entry), entry.number))
    keep(evaluation, "reference")
    assert evaluation.passed, evaluation.summary


@pytest.mark.parametrize("backend", [Backend.cuda, Backend.triton])
def test_a_pages_example_works(backend, sandbox):
    page = (ROOT / "prompts" / "backends" / f"{backend}.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    # The page shows a ring shift; all-gather is W - 1 of them.
    all_gather = """
def solution(tensor, _shift=solution):
    parts, rank, world_size = [tensor], kit.rank(), kit.world_size()
    for _ in range(world_size - 1):
        parts.append(_shift(parts[-1]))
    return torch.stack([parts[(s - rank) % world_size] for s in range(world_size)])
"""
    candidate = Candidate(source=code + all_gather, backend=backend)
    evaluation = sandbox.evaluate(request(candidate, 2, case="odd"))
    assert evaluation.passed, evaluation.summary


def test_a_profile_lists_kernels_and_writes_a_trace(sandbox, read_candidate, tmp_path):
    candidate, _ = read_candidate(next(path for path in GOOD if "oneshot" in path.stem), Backend.cuda)
    profile, _ = sandbox.profile(request(candidate, 1), tmp_path)
    assert len(profile.ranks) == WORLD_SIZE
    for rank in profile.ranks:
        first = rank.top[0]
        assert first.device_us > 0 and "symmetric_memory::barrier" not in first.name, first
        assert rank.span_us > 0 and rank.iteration_us > 0
        assert max(rank.communication_us, rank.computation_us) <= rank.span_us * 1.001
    longest = profile.kernels[0]
    assert longest.communicates and longest.fastest_us > 0 and longest.code is not None, longest
    assert profile.mechanisms == ("SM loads and stores",)
    assert profile.limits_us["link in"] > 0 and profile.limits_us["link out"] > 0
    assert Path(profile.trace).stat().st_size > 10_000


def test_all_memory_comes_back(read_candidate):
    """A session that ends on a hanging kernel leaves the GPUs as it found them."""
    before = {gpu.index: gpu.memory_used_bytes for gpu in machine.gpus()}
    hang = next(path for path in EVIL if "hang" in path.stem)
    candidate, _ = read_candidate(hang, Backend.cuda)
    with Sandbox("cuda", 2, LIMITS) as box:
        limits = Limits(first_call_s=5)
        evaluation = box.evaluate(request(candidate, int(hang.stem[1:3]), world_size=2, limits=limits))
        assert evaluation.verdict is Verdict.deadlock, evaluation.summary
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        over = [g.memory_used_bytes - before[g.index] for g in machine.gpus()]
        if max(over) < 64 << 20:
            break
        time.sleep(0.1)
    assert max(over) < 64 << 20, over


def test_more_gpus_than_there_are_is_one_clear_line():
    command = [sys.executable, "-m", "service.cli", "eval", "reference", "--problem", "1", "--platform", "cuda"]
    done = subprocess.run([*command, "--world-size", "64"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "needs 64 GPUs" in done.stderr and done.stderr.count("\n") <= 2


def test_load_beside_the_current_stream_writes_nothing_that_work_on_it_still_needs():
    import torch

    from harness.platforms.cuda import Cuda

    platform = Cuda()
    platform._busy = torch._C._cuda_sleep
    platform._filler = torch.zeros(1 << 20, dtype=torch.int64, device="cuda")
    platform._sink = torch.zeros((), dtype=torch.int64, device="cuda")
    target, ones = torch.zeros(64, dtype=torch.int64, device="cuda"), torch.ones(16, dtype=torch.int64, device="cuda")
    at = torch.arange(32, 48, device="cuda")
    # All that is free: the next allocation of this stream gets what `at` had.
    taken = [torch.empty(64, device="cuda") for _ in range(4096)]
    torch.cuda.synchronize()
    platform.delay(20)
    target.index_copy_(0, at, ones)
    del at
    platform.disturb(2)
    torch.cuda.synchronize()
    assert target.nonzero().flatten().tolist() == list(range(32, 48))
    del taken
