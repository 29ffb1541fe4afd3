"""Ranks are brought up ahead of the candidate that will use them, and hold the devices only while they do so."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness import build, lease, machine
from harness.evaluate import Sandbox
from harness.lease import BusyError, Lease
from harness.types import Backend, Candidate, Limits, Request, Verdict

ROOT = Path(__file__).resolve().parent.parent.parent
RIGHT = """
import os, torch, torch.distributed as dist
PID = os.getpid()
def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    return out
"""
BUILT = 'from harness import kit\nkit.build("""extern "C" int {name}() {{ return 1; }}""")\n' + RIGHT


def request(source: str = RIGHT) -> Request:
    return Request(
        candidate=Candidate(source=source, backend=Backend.cpp), problem=1, case="tiny", platform="cpu", world_size=2,
        dtype="float32", timing=False, trials=1, limits=Limits(),
    )  # fmt: skip


@pytest.fixture
def box():
    with Sandbox("cpu", 2) as made:
        yield made


def test_the_next_candidate_gets_ranks_that_were_brought_up_before(box):
    assert box.evaluate(request()).passed
    ahead = box._processes._warm.pids
    inside = [_pid_inside(pid) for pid in ahead]
    raises = "import os\nraise ValueError(os.getpid())\n"
    failed = box.evaluate(request(RIGHT + raises))
    assert failed.verdict is Verdict.runtime_error
    assert [int(rank.message.split()[-1]) for rank in failed.ranks] == inside
    assert not any(Path(f"/proc/{pid}").exists() for pid in ahead), "one candidate a set"


def test_nothing_is_brought_up_after_the_last_one(box):
    assert box.evaluate(request(), last=True).passed
    assert box._processes._warm is None and box._processes._reference.alive


def test_a_candidate_that_does_not_build_leaves_the_ranks_for_the_next(box):
    assert box.evaluate(request()).passed
    ahead = box._processes._warm.pids
    assert box.evaluate(request("def broken(:\n")).verdict is Verdict.compile_error
    assert box._processes._warm.pids == ahead


@pytest.mark.parametrize("victim", ["_warm", "_reference"])
def test_ranks_that_die_while_they_wait_are_replaced(box, victim):
    assert box.evaluate(request()).passed
    box._processes.ready()
    os.kill(getattr(box._processes, victim).pids[1], signal.SIGKILL)
    server = box._processes._started
    assert box.evaluate(request()).passed
    assert box._processes._started is server, "the fork server was well"


def test_ranks_on_their_way_hold_the_lease_and_let_go_of_it(box):
    assert box.evaluate(request()).passed
    other = Lease("cpu", [0])
    with other.hold(wait_s=10):  # the warm ranks have connected by then
        pass
    box._processes._warm.kill()
    box._processes._warm = None
    with other.hold(wait_s=0):
        box._processes.warm_up()
        assert box._processes._warm is None, "somebody else has the devices: nothing is begun"
    box._processes.warm_up()
    assert box._processes._warm is not None
    box._processes.ready()
    with other.hold(wait_s=0):
        pass


def test_a_process_that_inherits_the_lock_keeps_the_devices(tmp_path):
    ours, other = Lease("cpu", [0]), Lease("cpu", [0])
    with ours.hold() as locks:
        heir = subprocess.Popen([sys.executable, "-c", "input()"], pass_fds=locks, stdin=subprocess.PIPE)
    with pytest.raises(BusyError), other.hold(wait_s=0):
        pass
    heir.communicate(b"\n")
    with other.hold(wait_s=0):
        pass
    assert lease.free_devices("cpu", [0]) == [0]


def test_candidates_are_built_ahead_where_there_are_cores_for_it(box, monkeypatch, tmp_path):
    monkeypatch.setenv("RINGSMITH_CACHE", str(tmp_path))
    candidates = [request(BUILT.format(name=f"n{i}")).candidate for i in range(4)]
    box.build_ahead(candidates)
    assert not box._builds._running, "two cores are for the ranks"
    _pretend_cores(monkeypatch, 4 + 2 * build._CORES_PER_BUILD)
    box.build_ahead(candidates)
    assert len(box._builds._running) == 2
    for candidate in candidates:
        assert box.compile(candidate).built == (f"kit library (n{candidates.index(candidate)})",)
    assert not box._builds._running and not box._builds._queue


def test_builds_begun_ahead_survive_the_loss_of_the_fork_server(box, monkeypatch):
    _pretend_cores(monkeypatch, 4 + build._CORES_PER_BUILD)
    candidate = request(BUILT.format(name="again")).candidate
    assert box.evaluate(request()).passed
    box.build_ahead([candidate])
    os.kill(box._processes._started._process.pid, signal.SIGKILL)
    assert box.evaluate(request()).passed
    assert box.compile(candidate).verdict is None


def _pid_inside(pid: int) -> int:
    """A process's number in the jail that it is in."""
    return int(re.search(r"^NSpid:.*\s(\d+)$", Path(f"/proc/{pid}/status").read_text(), re.M)[1])


def _pretend_cores(monkeypatch, cores):
    there = machine.cpu().model_copy(update={"cores": cores})
    monkeypatch.setattr(machine, "cpu", lambda: there)
