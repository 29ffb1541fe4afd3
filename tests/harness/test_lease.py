"""Devices are held by one process at a time, and freed when it dies."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from harness import lease
from harness.errors import HarnessError
from harness.lease import BusyError, Lease, free_devices

ROOT = Path(__file__).resolve().parents[2]
HOLDER = """
import os, pathlib, sys, time
from harness import lease
lease.FOLDER = pathlib.Path(os.environ["LEASE_FOLDER"])
with lease.Lease("cuda", [int(d) for d in sys.argv[1].split(",")]).hold(float(sys.argv[2])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "FOLDER", tmp_path / "ringsmith-leases")
    monkeypatch.setenv("LEASE_FOLDER", str(lease.FOLDER))
    return lease.FOLDER


@pytest.fixture
def holder():
    """Starts a process that holds devices; it is gone after the test."""
    started = []

    def start(devices: str, wait_s: float = 5, **options) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, devices, str(wait_s)], cwd=ROOT, stdout=subprocess.PIPE, text=True, **options
        )
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_device_is_held_by_one_process(holder):
    holder("1,2")
    assert free_devices("cuda", range(4)) == [0, 3]
    assert free_devices("cpu", range(4)) == [0, 1, 2, 3]
    with (
        pytest.raises(HarnessError, match="cuda device 2 stayed leased to another process for 0 s"),
        Lease("cuda", [2, 3]).hold(0.1),
    ):
        pass
    assert free_devices("cuda", range(4)) == [0, 3], "a lease that was not granted keeps nothing"


def test_a_killed_holder_frees_its_devices(holder):
    process = holder("0")
    process.send_signal(signal.SIGKILL)
    process.wait()
    with Lease("cuda", [0]).hold(5):
        assert free_devices("cuda", [0]) == []
    assert free_devices("cuda", [0]) == [0]


def test_one_who_waits_gets_the_device_when_its_holder_dies(holder):
    first = holder("0,1")
    waiting = subprocess.Popen([sys.executable, "-c", HOLDER, "1,2", "30"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        time.sleep(0.2)
        assert 2 in free_devices("cuda", range(4)), "devices are taken in ascending order"
        first.kill()
        assert waiting.stdout.readline() == "held\n"
        assert free_devices("cuda", range(4)) == [0, 3]
    finally:
        waiting.kill()
        waiting.communicate()


def test_time_held_adds_up_and_waiting_does_not_count():
    lease = Lease("cuda", [3, 1])
    assert lease.devices == (1, 3) and lease.held_s == 0
    for _ in range(2):
        with lease.hold():
            time.sleep(0.05)
    assert 0.1 <= lease.held_s < 0.5
    before = lease.held_s
    other = Lease("cuda", [3])
    with lease.hold(), pytest.raises(HarnessError), other.hold(0.05):
        pass
    assert other.held_s == 0.0 and lease.held_s > before


def test_an_error_inside_frees_the_devices():
    lease = Lease("cuda", [0])
    with pytest.raises(KeyError), lease.hold():
        raise KeyError
    assert free_devices("cuda", [0]) == [0] and lease.held_s > 0


def test_a_lease_does_not_pass_to_child_processes():
    """A child that outlives the block must not keep the device."""
    with Lease("cuda", [0]).hold():
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    assert free_devices("cuda", [0]) == [0]
    child.kill()
    child.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_a_device_held_by_another_user_is_seen_and_freed(monkeypatch):
    """Lock files are not writable by others, and Linux refuses O_CREAT on them in a sticky folder."""
    with tempfile.TemporaryDirectory(dir="/tmp") as public:
        Path(public).chmod(0o1777)
        monkeypatch.setattr(lease, "FOLDER", Path(public, "ringsmith-leases"))
        with Lease("cuda", [0, 1]).hold():
            pass
        locks = Path(public, "ringsmith-leases")
        assert locks.stat().st_mode & 0o7777 == 0o1777
        # Root acts on the files of user 1234, then user 1234 on those of root.
        os.chown(locks / "cuda-0.lock", 1234, 1234)
        with Lease("cuda", [0]).hold(1):
            assert free_devices("cuda", range(2)) == [1]
        os.chown(locks / "cuda-0.lock", 0, 0)
        script = (
            "import os, pathlib\nfrom harness import lease\n"
            f"lease.FOLDER = pathlib.Path({str(locks)!r})\n"
            "os.setuid(1234)\nprint(lease.free_devices('cuda', range(3)))"
        )
        with Lease("cuda", [0]).hold(1):
            done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
        assert done.stdout == "[1, 2]\n", done.stderr


def test_who_waits_comes_before_who_lets_go_and_asks_again():
    """Else a batch of evaluations would keep everybody else out until its end."""
    batch, other = Lease("cpu", [0]), Lease("cpu", [0])
    entered, leave = threading.Event(), threading.Event()

    def wait_for_it():
        with other.hold(wait_s=30):
            entered.set()
            leave.wait(30)

    waiter = threading.Thread(target=wait_for_it)
    with batch.hold():
        waiter.start()
        while "cpu-turn" not in _locked_files():  # until the other one is in line
            time.sleep(0.01)
    with pytest.raises(BusyError), batch.hold(wait_s=0):
        pass
    assert entered.wait(30)
    leave.set()
    waiter.join()
    with batch.hold(wait_s=0):
        pass


def _locked_files() -> str:
    return " ".join(kind for kind in ("cpu-turn", "cpu") if not lease.free_devices(kind, [0]))
