"""While the reference is timed nothing of the candidate's runs: not its ranks, nor processes that come and go."""

import itertools
import os
import signal
import subprocess
import sys
import time

from harness.ranks import RankSet

CHAIN = """
import os, sys, time
while True:
    if (child := os.fork()) == 0:
        until = time.monotonic() + 0.005
        while time.monotonic() < until:
            os.write(1, b".")
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_processes_that_are_started_one_after_the_other_stand_still(tmp_path):
    written = tmp_path / "written"
    with written.open("wb") as file, subprocess.Popen([sys.executable, "-I", "-S", "-c", CHAIN], stdout=file) as rank:
        try:
            ranks = RankSet(None, "candidate", tmp_path, [], [rank.pid], None)
            _wait_for_more(written, 0)
            for _ in range(20):
                with ranks.stopped():
                    before = written.stat().st_size
                    time.sleep(0.05)
                    assert written.stat().st_size == before
                _wait_for_more(written, before)
        finally:
            rank.kill()


CONTINUES_ITSELF = """
import os, signal, sys, time
if os.fork() == 0:
    while True:
        time.sleep(0.002)
        os.kill(os.getppid(), signal.SIGCONT)
while True:
    pass
"""


def test_what_a_rank_uses_that_somebody_continues_is_counted(tmp_path):
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", CONTINUES_ITSELF]) as rank:
        try:
            ranks = RankSet(None, "candidate", tmp_path, [], [rank.pid], None)
            time.sleep(0.2)
            (child,) = ranks._started()
            with ranks.stopped():
                time.sleep(0.1)
            assert ranks.used_stopped_s < 0.05  # the child was stopped too
            with ranks.stopped():
                os.kill(child, signal.SIGCONT)
                time.sleep(0.5)
            assert ranks.used_stopped_s > 0.1
        finally:
            os.kill(child, signal.SIGKILL)
            rank.kill()


def test_processes_without_end_hold_nobody_up(tmp_path, monkeypatch):
    """Each time that is looked there is one more, which has ended: no process has so high a number."""
    numbers = itertools.count(1 << 23)
    monkeypatch.setattr(RankSet, "_started", lambda self: {next(numbers)})
    monkeypatch.setattr("harness.ranks._ALL_STOP_S", 0.3)
    ranks = RankSet(None, "candidate", tmp_path, [], [next(numbers)], None)
    with ranks.stopped():
        assert ranks.used_stopped_s >= 0.3


def test_what_was_started_while_all_were_stopped_is_counted(tmp_path, monkeypatch):
    found = iter([set(), set(), {1 << 23}])
    monkeypatch.setattr(RankSet, "_started", lambda self: next(found))
    ranks = RankSet(None, "candidate", tmp_path, [], [(1 << 23) + 1], None)
    with ranks.stopped():
        time.sleep(0.05)
    assert ranks.used_stopped_s >= 0.05


def test_ranks_that_have_ended_are_no_error(tmp_path):
    with subprocess.Popen(["true"]) as rank:
        pass
    ranks = RankSet(None, "candidate", tmp_path, [], [rank.pid], None)
    with ranks.stopped():
        assert ranks.started_cpu_s() == {}


def _wait_for_more(path, than):
    until = time.monotonic() + 20
    while path.stat().st_size <= than:
        assert time.monotonic() < until, "it does not go on"
        time.sleep(0.01)
