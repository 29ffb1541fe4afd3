"""Processes as /proc shows them: who is whose child, and how much processor time they had. Standard library only.

They may be somebody else's, may call themselves what they like and may end at any moment: one that is gone has no name,
no namespace and no time.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from harness.jail_process import NOBODY


def reader(command: list[str], memory_bytes: int) -> list[str]:
    """The command of a program that reads a file which an untrusted process wrote: with little memory, and as nobody
    where we may choose that, so that a fault of the program is worth little."""
    limits = ["prlimit", f"--as={memory_bytes}"] if shutil.which("prlimit") else []
    if os.geteuid() == 0 and shutil.which("setpriv"):
        limits += ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs"]
    return [*limits, *command]


def all_pids() -> list[int]:
    """Of every process that can be seen. One that has ended and not been waited for is there."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def parents() -> dict[int, int]:
    """Of every process that can be seen: pid -> its parent's."""
    found = {}
    for pid in all_pids():
        with contextlib.suppress(OSError):
            found[pid] = int(_status(pid)[1])
    return found


def children(pid: int) -> list[int]:
    return [child for child, parent in parents().items() if parent == pid]


def descendants(pids: Iterable[int]) -> set[int]:
    """Children of these processes, their children and so on."""
    by_parent: dict[int, list[int]] = {}
    for child, parent in parents().items():
        by_parent.setdefault(parent, []).append(child)
    found: set[int] = set()
    waiting = list(pids)
    while waiting:
        new = [child for child in by_parent.get(waiting.pop(), ()) if child not in found]
        found.update(new)
        waiting += new
    return found


def name(pid: int) -> str:
    """Of its program, at most 15 characters."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").removesuffix("\n")
    except OSError:
        return ""


def runs(pid: int) -> bool:
    """Whether it has neither been stopped nor ended."""
    try:
        return _status(pid)[0] not in "TtZX"
    except (OSError, IndexError):
        return False


def _status(pid: int) -> list[str]:
    """What `/proc/PID/stat` says after the name, which is in parentheses and may hold anything: state, parent, ..."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def namespace(pid: int) -> str:
    """Which pid namespace it is in."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def cpu_s(pid: int) -> float:
    """Processor time of all its threads so far."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # CPUCLOCK_SCHED of a process, as clock_getcpuclockid makes it
    except OSError:
        return 0.0


def delayed_s(pid: int) -> float:
    """For how long its main thread, or the thread of that number, has waited for a processor that somebody else had; 0
    where the kernel does not say."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def wanted_s(pid: int) -> float:
    """Processor time that it had, and that its living threads have waited for while others had it. Of threads that want
    to run, this grows on a busy machine as on an idle one."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return 0.0
    return cpu_s(pid) + sum(delayed_s(int(thread)) for thread in threads)
