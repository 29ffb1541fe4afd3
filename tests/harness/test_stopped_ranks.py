"""While the reference is timed nothing of the candidate's runs: not its ranks, nor processes that come and go."""

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


def test_ranks_that_have_ended_are_no_error(tmp_path):
    with subprocess.Popen(["true"]) as rank:
        pass
    ranks = RankSet(None, "candidate", tmp_path, [], [rank.pid], None)
    with ranks.stopped():
        assert ranks.started_cpu_s() == 0.0


def _wait_for_more(path, than):
    until = time.monotonic() + 20
    while path.stat().st_size <= than:
        assert time.monotonic() < until, "it does not go on"
        time.sleep(0.01)
