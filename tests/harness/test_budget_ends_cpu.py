"""A limit that is reached while ranks are at work ends the call and nothing else: no verdict, no lease, no process is
left, and the sandbox goes on. Real ranks on the cpu platform."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from harness import lease, proc
from harness.allowance import Allowance
from harness.errors import BudgetEndedError
from harness.evaluate import Sandbox
from harness.lease import free_devices
from harness.types import Backend, Candidate, Limits, Request

ROOT = Path(__file__).resolve().parents[2]
RIGHT = """
import torch.distributed as dist
def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    return out
"""
SLEEPS = RIGHT.replace("    return out", "    import time; time.sleep(500)\n    return out")
COMPUTES = RIGHT.replace("    return out", "    while True: pass\n    return out")
COMPILES = """
from harness import kit
library = kit.build(r'''
constexpr unsigned long spin(unsigned long n) {
    unsigned long x = 1;
    for (unsigned long i = 0; i < n; ++i) x = x * 3 + i;
    return x;
}
extern "C" long value() { constexpr unsigned long v = spin(4000000000ul); return v; }
''', ["-fconstexpr-ops-limit=90000000000", "-fconstexpr-loop-limit=2000000000"])
def solution(tensor):
    return tensor
"""
HOLDER = """
import pathlib, sys, time
from harness import lease
lease.FOLDER = pathlib.Path(sys.argv[1])
with lease.Lease("cpu", [0]).hold():
    print("held", flush=True)
    time.sleep(500)
"""


# So long that it is not them that end a call.
LIMITS = Limits(load_s=60, first_call_s=60, call_s=60)


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox("cpu", 2, LIMITS) as box:
        yield box


def request(source: str, **changes) -> Request:
    candidate = Candidate(source=source, backend=Backend.cpp)
    settings = {"case": "tiny", "platform": "cpu", "world_size": 2, "dtype": "float32", "timing": False, "trials": 2}
    return Request(candidate=candidate, problem=1, limits=LIMITS, **(settings | changes))


class AfterCall(Allowance):
    """Ends `delay_s` after `ready()` was true for the first time."""

    def __init__(self, ready, delay_s=0.3, limit="wall_s"):
        super().__init__(self.used_up)
        self.ready, self.delay_s, self.limit, self.since = ready, delay_s, limit, None

    def used_up(self):
        if self.since is None and self.ready(self):
            self.since = time.monotonic()
        return self.limit if self.since is not None and time.monotonic() > self.since + self.delay_s else None


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def right_afterwards(sandbox) -> None:
    evaluation = sandbox.evaluate(request(RIGHT), last=True)
    assert evaluation.passed, evaluation.summary
    assert free_devices("cpu", [0]) == [0], "nobody holds the lease"


@pytest.mark.parametrize("source", [SLEEPS, COMPUTES], ids=["sleeps", "computes"])
def test_a_call_that_is_running(sandbox, source):
    assert sandbox.evaluate(request(RIGHT)).passed
    use = AfterCall(lambda use: use.device_s > 1.0, limit="device_s")
    with pytest.raises(BudgetEndedError) as ended:
        sandbox.evaluate(request(source), allowance=use)
    assert ended.value.limit == "device_s"
    assert 1.0 < use.device_s < 30.0
    right_afterwards(sandbox)


def test_a_profile_that_is_running(sandbox, tmp_path):
    use = AfterCall(lambda use: use.device_s > 1.0)
    with pytest.raises(BudgetEndedError):
        sandbox.profile(request(SLEEPS), tmp_path, allowance=use)
    assert use.device_s > 1.0
    right_afterwards(sandbox)


def test_a_build_that_is_running(sandbox):
    def compiles(use):
        return any("cc1plus" in _command(pid) for pid in proc.descendants([os.getpid()]))

    use = AfterCall(compiles)
    candidate = Candidate(source=COMPILES, backend=Backend.cpp)
    with pytest.raises(BudgetEndedError):
        sandbox.compile(candidate, allowance=use)
    assert use.since is not None and use.device_s == 0.0
    assert not compiles(use), "the compiler is gone"
    assert candidate.hash not in sandbox._builds._reports, "no verdict is kept"
    right_afterwards(sandbox)


def test_the_reference_is_asked_when_the_limit_comes(sandbox):
    """Its answer would be taken for that to the next request: it is ended, and there are fresh ones."""
    assert sandbox.evaluate(request(RIGHT)).passed
    reference = sandbox._processes._reference
    asked = reference.begin
    use = AfterCall(lambda use: reference.waiting_for_check, 0.0)
    reference.waiting_for_check = False

    def begin(op, payloads):
        reference.waiting_for_check = op == "check"
        asked(op, payloads)

    reference.begin = begin
    with pytest.raises(BudgetEndedError):
        sandbox.evaluate(request(RIGHT), allowance=use)
    assert not reference.alive and sandbox._processes._reference is not reference
    right_afterwards(sandbox)


def test_every_moment(sandbox):
    """Wherever it ends, the sandbox goes on."""
    for moment in range(1, 40, 3):
        looks = iter(range(1000))
        use = Allowance(lambda looks=looks, moment=moment: "wall_s" if next(looks) >= moment else None)
        try:
            sandbox.evaluate(request(RIGHT, trials=1), allowance=use)
        except BudgetEndedError:
            pass
        else:
            break
    assert moment > 1
    right_afterwards(sandbox)


@pytest.fixture
def holder():
    """Another process that has the lease."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(lease.FOLDER)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_waiting_for_a_lease_is_told_and_is_no_use_of_devices(sandbox, holder):
    use = Allowance()

    def release():
        while use.waited_s < 0.5:
            time.sleep(0.01)
        holder.kill()

    threading.Thread(target=release).start()
    evaluation = sandbox.evaluate(request(RIGHT), allowance=use, last=True)
    assert evaluation.passed and 0.5 <= evaluation.waited_s == use.waited_s
    assert 0 < evaluation.device_s == use.device_s
    assert evaluation.waited_s <= evaluation.stage_s["load"]
    assert sandbox.evaluate(request(RIGHT), last=True).waited_s == 0.0


def test_a_lease_that_somebody_holds(sandbox, holder):
    use = AfterCall(lambda use: use.waited_s > 0.2, 0.0, "sweep usd")
    with pytest.raises(BudgetEndedError):
        sandbox.evaluate(request(RIGHT), allowance=use)
    assert use.waited_s > 0.2
    holder.kill()
    right_afterwards(sandbox)
