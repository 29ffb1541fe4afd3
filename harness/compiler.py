"""Compilers: how one is run, and whether one is at work. One that is killed (by a person, for want of memory) says
nothing about its source: once more.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence

from harness import proc

# The driver (g++, nvcc) survives when one of its stages is killed, and says so.
_KILLED = re.compile(r"\bKilled signal\b|\bsignal 9\b")


def run(command: Sequence[str]) -> tuple[int, str]:
    """Exit status and output of a compiler."""

    def once() -> tuple[int, str]:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
        return done.returncode, done.stderr + done.stdout

    return twice_if_killed(once)


def twice_if_killed(once: Callable[[], tuple[int, str]]) -> tuple[int, str]:
    """What `once` returns, an exit status and output, of a second try if the first was killed."""
    code, output = once()
    if code == -9 or (code != 0 and _KILLED.search(output)):
        return once()
    return code, output


_PROGRAMS = {
    "nvcc", "cicc", "ptxas", "fatbinary", "nvlink", "cudafe++", "cc1plus", "cc1", "g++", "gcc", "c++", "cc", "clang",
    "as", "ld", "collect2", "ninja",
}  # fmt: skip


def at_work(pids: Sequence[int]) -> bool:
    """Whether one of these processes has a compiler among its descendants. By name, as /proc has it."""
    return any(proc.name(pid) in _PROGRAMS for pid in proc.descendants(pids))
