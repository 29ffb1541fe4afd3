"""While the reference is timed nothing of the candidate's runs: not its ranks, nor processes that come and go."""

import itertools
import os
import signal
import subprocess
import sys
import time

import pytest

from harness import control_group, followers
from harness.control_group import ControlGroup
from harness.followers import ByControlGroup, ByProc

CHAIN = """
import os, sys, time
while True:
    if (child := os.fork()) == 0:
        until = time.monotonic() + {}
        while time.monotonic() < until:
            os.write(1, b".")
        os._exit(0)
    os.waitpid(child, 0)
"""
LEAVES = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            pass
    os._exit(0)
while True:
    time.sleep(1)
"""


@pytest.fixture(params=[ByProc, ByControlGroup])
def start(request, tmp_path):
    """Starts a rank with a program and returns what stops it and what it starts. All are gone afterwards."""
    made, groups = [], []

    def started(program, written=subprocess.DEVNULL):
        group = None
        if request.param is ByControlGroup:
            try:
                group = ControlGroup(control_group.find_home() / control_group.group_name())
            except OSError as error:
                pytest.skip(f"no control groups here: {error}")
            group.make()
            groups.append(group)
            program = f"open('{group._folder}/cgroup.procs', 'w').write('0')\n{program}"
        rank = subprocess.Popen([sys.executable, "-I", "-S", "-c", program], stdout=written)
        made.append(rank)
        return ByProc([rank.pid]) if group is None else ByControlGroup([rank.pid], group)

    started.kind = request.param
    yield started
    for group in groups:
        group.kill()
    for rank in made:
        rank.kill()
        rank.wait()
    for group in groups:
        until = time.monotonic() + 10
        while group.pids() and time.monotonic() < until:
            time.sleep(0.01)
        group.remove()
        assert group.pids() == set() and not group._folder.exists()


@pytest.mark.parametrize("seconds", [0.005, 0.0002])
def test_processes_that_are_started_one_after_the_other_stand_still(tmp_path, start, seconds):
    if seconds < 0.001 and start.kind is ByProc:
        pytest.skip("what /proc shows misses them")
    written = tmp_path / "written"
    with written.open("wb") as file:
        there = start(CHAIN.format(seconds), file)
        _wait_for_more(written, 0)
        for _ in range(20):
            with there.stopped():
                before = written.stat().st_size
                time.sleep(0.05)
                assert written.stat().st_size == before
            _wait_for_more(written, before)
        assert there.used_stopped_s < 0.02


def test_the_time_of_processes_that_have_ended_is_known(tmp_path, start):
    if start.kind is ByProc:
        pytest.skip("what /proc shows misses them")
    written = tmp_path / "written"
    with written.open("wb") as file:
        there = start(CHAIN.format(0.0002), file)
        _wait_for_more(written, 0)
        used_s, rank = there.watch(), there._ranks[0]
        time.sleep(0.5)
        assert 0.01 < used_s() < 0.6 and rank not in there.pids()


def test_a_process_that_has_left_its_parents_is_found(start):
    if start.kind is ByProc:
        pytest.skip("only with a namespace of its own")
    there = start(LEAVES)
    until = time.monotonic() + 10
    while len(there.pids()) != 1:
        assert time.monotonic() < until
        time.sleep(0.01)
    used_s = there.watch()
    time.sleep(0.2)
    assert used_s() > 0.05
    with there.stopped():
        used_s = there.watch()
        time.sleep(0.1)
        assert used_s() < 0.01


CONTINUES_ITSELF = """
import os, signal, sys, time
if os.fork() == 0:
    while True:
        time.sleep(0.002)
        os.kill(os.getppid(), signal.SIGCONT)
while True:
    pass
"""


def test_what_a_rank_uses_that_somebody_continues_is_counted(start):
    there = start(CONTINUES_ITSELF)
    time.sleep(0.2)
    (child,) = there.pids()
    with there.stopped():
        time.sleep(0.1)
    assert there.used_stopped_s < 0.05  # the child was stopped too
    try:
        with there.stopped():
            os.kill(child, signal.SIGCONT)
            time.sleep(0.5)
        # A signal continues nothing that its group has stopped.
        assert there.used_stopped_s > 0.1 if start.kind is ByProc else there.used_stopped_s < 0.05
    finally:
        os.kill(child, signal.SIGKILL)


def test_processes_without_end_hold_nobody_up(monkeypatch):
    """Each time that is looked there is one more, which has ended: no process has so high a number."""
    numbers = itertools.count(1 << 23)
    monkeypatch.setattr(ByProc, "pids", lambda self: {next(numbers)})
    monkeypatch.setattr(followers, "_ALL_STOP_S", 0.3)
    there = ByProc([next(numbers)])
    with there.stopped():
        assert there.used_stopped_s >= 0.3


def test_what_was_started_while_all_were_stopped_is_counted(monkeypatch):
    found = iter([set(), set(), {1 << 23}])
    monkeypatch.setattr(ByProc, "pids", lambda self: next(found))
    there = ByProc([(1 << 23) + 1])
    with there.stopped():
        time.sleep(0.05)
    assert there.used_stopped_s >= 0.05


def test_ranks_that_have_ended_are_no_error(start):
    there = start("pass")
    time.sleep(0.3)
    with there.stopped():
        assert there.pids() == set()


def test_a_group_that_is_gone_is_no_error(tmp_path):
    there = ByControlGroup([1 << 23], ControlGroup(tmp_path / "gone"))
    with there.stopped():
        assert there.pids() == set() and there.watch()() == 0.0
    assert list(tmp_path.iterdir()) == []


def test_groups_of_processes_that_are_gone_are_removed():
    try:
        home = control_group.find_home()
    except OSError as error:
        pytest.skip(f"no control groups here: {error}")
    with subprocess.Popen(["true"]) as gone:
        pass
    left, own = home / f"ringsmith-{gone.pid}-x", home / f"ringsmith-{os.getpid()}-x"
    left.mkdir()
    own.mkdir()
    with subprocess.Popen(["sleep", "60"]) as inside:
        ControlGroup(left).add(inside.pid)
        ControlGroup(left)._freeze(True)
        try:
            control_group.find_home()
            assert inside.wait(10) == -signal.SIGKILL
            control_group.find_home()
            assert own.exists() and not left.exists()
        finally:
            inside.kill()
            own.rmdir()


def _wait_for_more(path, than):
    until = time.monotonic() + 20
    while path.stat().st_size <= than:
        assert time.monotonic() < until, "it does not go on"
        time.sleep(0.01)
