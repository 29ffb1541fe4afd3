"""What is left behind when candidates, supervisors or the harness's own processes die: nothing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.evaluate import Sandbox
from harness.types import Backend, Candidate, Limits, Request, Verdict
from tests.processes import descendants

ROOT = Path(__file__).resolve().parent.parent.parent
LIMITS = Limits(load_s=2.5, first_call_s=2.5, call_s=2.5)
RIGHT = """
import torch, torch.distributed as dist
def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    return out
"""


def request(source: str) -> Request:
    candidate = Candidate(source=source, backend=Backend.cpp)
    return Request(
        candidate=candidate,
        problem=1,
        case="tiny",
        platform="cpu",
        world_size=2,
        dtype="float32",
        timing=False,
        trials=1,
        limits=LIMITS,
    )


@pytest.mark.parametrize("victim", ["fork server", "reference rank"])
def test_a_killed_process_of_ours_is_replaced_and_not_charged(victim):
    with Sandbox("cpu", 2, LIMITS) as box:
        first = box.evaluate(request(RIGHT))
        assert first.passed and first.fault == ""
        (server,) = _children(os.getpid(), "harness.forkserver")[-1:]
        os.kill(server if victim == "fork server" else descendants(server)[0], signal.SIGKILL)
        second = box.evaluate(request(RIGHT))
        assert second.passed and second.fault


def test_a_grandchild_dies_with_its_candidate():
    marker = f"86400.{os.getpid()}"
    source = (
        "import subprocess\n"
        f"subprocess.Popen(['sleep', '{marker}'], start_new_session=True)\n"
        "def solution(tensor):\n    raise ValueError('done')\n"
    )
    with Sandbox("cpu", 2, LIMITS) as sandbox:
        assert sandbox.evaluate(request(source)).verdict is Verdict.runtime_error
        assert not _running(marker)


def test_nothing_survives_a_killed_supervisor(tmp_path):
    """SIGKILL the process that evaluates a hanging candidate: ranks, fork server and scratch files go."""
    hang = tmp_path / "hang.py"
    hang.write_text("import time\ndef solution(tensor):\n    time.sleep(86400)\n")
    code = (
        "from harness.evaluate import Sandbox\nfrom harness.types import *\n"
        f"source = open({str(hang)!r}).read()\n"
        "box = Sandbox('cpu', 2)\n"
        "candidate = Candidate(source=source, backend='cpp')\n"
        "wanted = Request(candidate=candidate, problem=1, case='tiny', platform='cpu', world_size=2, dtype='float32')\n"
        "box.evaluate(wanted, on_stage=lambda s: print(s, flush=True))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as supervisor:
        for line in supervisor.stdout:
            if line.strip() == "correctness":
                break
        time.sleep(0.5)
        children = descendants(supervisor.pid)
        assert len(children) >= 5  # fork server, two reference ranks, two candidate ranks
        supervisor.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while (left := [pid for pid in children if _alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left
    with Sandbox("cpu", 2) as box:  # the next session sweeps what the killed one could not
        box.environment()
        assert not list(Path("/dev/shm").glob(f"ringsmith-{supervisor.pid}-*"))


def _running(marker: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if marker in (entry / "cmdline").read_text().split("\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def _children(pid: int, word: str) -> list[int]:
    """Children of a process with a word in their command line, oldest first."""
    ours = (child for child in descendants(pid) if word in Path(f"/proc/{child}/cmdline").read_text().split("\0"))
    return [child for child in ours if f"PPid:\t{pid}\n" in Path(f"/proc/{child}/status").read_text()]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
