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

from harness import lease, machine
from harness.allowance import Allowance
from harness.errors import BudgetEndedError, HarnessError
from harness.lease import BusyError, Lease, free_devices
from harness.outcomes import Outcome, RankOutcome
from harness.processes import Processes
from harness.types import Limits

ROOT = Path(__file__).resolve().parents[2]
HOLDER = """
import os, pathlib, sys, time
from harness import lease, machine
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
    assert lease.devices == (1, 3)
    use, other = Allowance(), Allowance()
    for _ in range(2):
        with lease.hold(allowance=use):
            time.sleep(0.05)
    assert 0.2 <= use.device_s < 1.0 and use.waited_s == 0.0, "seconds x devices"
    with lease.hold(), pytest.raises(HarnessError), Lease("cuda", [3]).hold(0.05, other):
        pass
    assert other.device_s == 0.0 and other.waited_s >= 0.05


def test_an_error_inside_frees_the_devices():
    use = Allowance()
    with pytest.raises(KeyError), Lease("cuda", [0]).hold(allowance=use):
        raise KeyError
    assert free_devices("cuda", [0]) == [0] and use.device_s > 0


def test_a_limit_ends_the_waiting_for_a_device(holder):
    holder("0")
    use = Allowance(lambda: "sweep usd")
    with pytest.raises(BudgetEndedError) as ended, Lease("cuda", [0, 1]).hold(60, use):
        pass
    assert ended.value.limit == use.ended == "sweep usd" and use.device_s == 0.0
    assert free_devices("cuda", [1]) == [1]


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


def test_a_device_in_quarantine_is_not_free_until_that_is_lifted():
    lease.quarantine("cuda", [1, 3], "copies between devices arrive wrong")
    assert free_devices("cuda", range(4)) == [0, 2] and free_devices("cpu", range(4)) == [0, 1, 2, 3]
    entries = lease.quarantined()
    assert [(entry.kind, entry.device) for entry in entries] == [("cuda", 1), ("cuda", 3)]
    assert entries[0].reason == "copies between devices arrive wrong" and abs(entries[0].at - time.time()) < 60
    assert lease.lift() == entries and lease.quarantined() == [] and free_devices("cuda", range(4)) == [0, 1, 2, 3]


def test_a_damaged_entry_still_keeps_its_device_out(own_folder):
    own_folder.mkdir()
    (own_folder / "cuda-2.quarantine").write_text("{")
    assert free_devices("cuda", range(3)) == [0, 1]
    assert "cannot be read" in lease.quarantined()[0].reason
    lease.lift()
    assert free_devices("cuda", range(3)) == [0, 1, 2]


GPU = machine.Gpu(
    index=0, name="H200", uuid="GPU-0", memory_bytes=2**37, memory_used_bytes=0, compute_capability=(9, 0),
    driver="580", nvlinks=18, nvlink_mb_per_s=None,
)  # fmt: skip


class Ranks:
    """Stands for reference ranks: probes fail or not."""

    def __init__(self, well: bool) -> None:
        self.waiting, self.well, self.killed = True, well, False

    def ask(self, *_: object, **__: object) -> Outcome:
        return self.wait(0)

    def wait(self, deadline_s: float) -> Outcome:
        self.waiting = False
        return Outcome(
            [RankOutcome(0, reply={"seconds": 0.0} if self.well else None, exit="" if self.well else "SIGBUS")]
        )

    @property
    def alive(self) -> bool:
        return not self.killed

    def log(self, rank: int) -> str:
        return ""

    def kill(self) -> None:
        self.killed = True


@pytest.fixture
def node(monkeypatch):
    """`Processes` of two ranks on four GPUs; `comes` is what fresh reference ranks will be like, `memory` what nobody
    has on each leased GPU."""
    processes = Processes("cuda", 2, Limits(), "none")
    processes.world_size = 2
    facts = {"comes": [True], "memory": [0, 0]}
    monkeypatch.setattr(machine, "gpus", lambda: tuple(GPU.model_copy(update={"index": index}) for index in range(4)))
    monkeypatch.setattr(machine, "unowned_bytes", lambda devices: list(facts["memory"]))
    monkeypatch.setattr("harness.processes._MEMORY_S", 0.1)
    monkeypatch.setattr(processes, "_begin", lambda role, locks=(): Ranks(facts["comes"].pop(0)))
    assert processes.lease().devices == (0, 1)
    processes.reference()
    return processes, facts


def test_devices_where_fresh_ranks_fail_as_well_are_quarantined(node):
    processes, facts = node
    broken = processes._reference
    broken.well, facts["comes"] = False, [False]
    processes.refill(())
    assert broken.killed and [entry.device for entry in lease.quarantined()] == [0, 1]
    assert "fresh ranks do not come up" in lease.quarantined()[0].reason
    assert processes.lease().devices == (2, 3), "the session goes on with others"
    lease.quarantine("cuda", [3], "for the test")
    processes._lease = None
    with pytest.raises(
        HarnessError, match=r"1 GPUs can be used, 2 are needed; in quarantine: GPU 0: .*lift-quarantine"
    ):
        processes.lease()


def test_devices_that_are_well_with_fresh_ranks_are_not(node):
    processes, facts = node
    processes._reference.well, facts["comes"] = False, [True]
    processes.refill(())
    assert lease.quarantined() == [] and processes._reference.well and processes.lease().devices == (0, 1)


def test_ranks_that_never_came_up_say_nothing_about_devices(node):
    processes, facts = node
    processes._reference, processes._worked, facts["comes"] = None, False, [False]
    with pytest.raises(HarnessError):
        processes.reference()
    assert lease.quarantined() == []


@pytest.mark.parametrize(("kept", "out"), [([0, 60 << 20], []), ([0, 70 << 20], [0, 1]), (None, [])])
def test_memory_that_belongs_to_nobody_is_a_reason(node, monkeypatch, kept, out):
    processes, _ = node
    monkeypatch.setattr(machine, "unowned_bytes", lambda devices: kept)
    processes.refill(())
    assert [entry.device for entry in lease.quarantined()] == out


def _locked_files() -> str:
    return " ".join(kind for kind in ("cpu-turn", "cpu") if not lease.free_devices(kind, [0]))
