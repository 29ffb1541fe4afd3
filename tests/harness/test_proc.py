"""What is read of real processes: children, their children, and some that are gone."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from harness import compiler, proc
from tests import processes

PARENT = """
import subprocess, sys
with subprocess.Popen(sys.argv[1:]) as child:
    print(child.pid, flush=True)
"""
BUSY = (
    "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass\nprint(1, flush=True)\ninput()"
)
WANTING = """
import hashlib, os, threading, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
def work(data=bytes(1 << 20)):
    while True:
        hashlib.sha256(data)
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.5)
print(1, flush=True)
input()
os._exit(0)
"""


@contextlib.contextmanager
def parent_of(program):
    """(child, grandchild): a process and the program that it has started and waits for."""
    command = [sys.executable, "-c", PARENT, program, "60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as child:
        yield child.pid, int(child.stdout.readline())
        os.killpg(child.pid, signal.SIGKILL)


@pytest.fixture
def family():
    with parent_of("sleep") as pids:
        yield pids


@pytest.fixture
def gone():
    """Number of a process that has ended and been waited for."""
    with subprocess.Popen(["true"]) as process:
        pass
    return process.pid


def test_children_and_their_children(family):
    child, grandchild = family
    known = proc.parents()
    assert (known[grandchild], known[child]) == (child, os.getpid())
    assert child in proc.children(os.getpid()) and grandchild not in proc.children(os.getpid())
    assert proc.children(child) == [grandchild]


def test_descendants_are_those_of_all_that_are_given(family):
    child, grandchild = family
    assert proc.descendants([child]) == {grandchild}
    assert {child, grandchild} <= proc.descendants([os.getpid()]) == {*processes.descendants(os.getpid())}
    assert proc.descendants([os.getpid(), child]) == proc.descendants([os.getpid()])
    assert proc.descendants([grandchild]) == proc.descendants([]) == set()


def test_one_that_has_not_been_waited_for_is_a_child():
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert process.pid in proc.children(os.getpid())
    assert process.pid not in proc.parents()


@pytest.mark.parametrize("called", [") 1 2 (x", "a b) R 1", "\udcff\udcfe"])
def test_a_name_cannot_forge_a_parent(called, tmp_path):
    (tmp_path / called).symlink_to("/bin/sleep")
    with subprocess.Popen([tmp_path / called, "60"]) as process:
        assert process.pid in proc.children(os.getpid())
        assert proc.name(process.pid) == os.fsencode(called).decode(errors="replace")
        process.kill()


def test_a_compiler_is_known_by_its_name_and_its_ancestors(tmp_path, family):
    (tmp_path / "cc1plus").symlink_to("/bin/sleep")
    with parent_of(tmp_path / "cc1plus") as (parent, started):
        assert compiler.at_work([parent]) and compiler.at_work([family[0], parent])
        assert not compiler.at_work([family[0]]) and not compiler.at_work([started])
    assert not compiler.at_work([parent])


def test_processor_time_of_another_process():
    with subprocess.Popen(
        [sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        process.stdout.readline()
        used, waited = proc.cpu_s(process.pid), proc.delayed_s(process.pid)
        assert 0.2 <= used <= time.process_time() + 60 and waited >= 0
        process.communicate("\n")
    assert proc.cpu_s(os.getpid()) == pytest.approx(time.process_time(), abs=0.1)


def test_threads_that_wait_for_a_processor_want_it():
    """Four on one core want four times what they get."""
    with subprocess.Popen([sys.executable, "-c", WANTING], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        used, wanted = proc.cpu_s(process.pid), proc.wanted_s(process.pid)
        process.communicate(b"\n")
    assert wanted > 2 * used > 0


def test_the_namespace_is_that_of_the_parent(family):
    assert proc.namespace(family[0]) == proc.namespace(os.getpid()) == os.readlink("/proc/self/ns/pid")


def test_of_one_that_is_gone_nothing_is_told(gone):
    assert (proc.name(gone), proc.namespace(gone), proc.cpu_s(gone), proc.delayed_s(gone)) == ("", "", 0.0, 0.0)
    assert proc.wanted_s(gone) == 0
    assert proc.children(gone) == [] and proc.descendants([gone]) == set()
