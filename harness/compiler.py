"""Runs a compiler. One that is killed (by a person, for want of memory) says nothing about its source: once more.

nvcc is made to keep the PTX of what it compiles: the library holds it compressed or not at all, and machine code does
not tell what it was made from.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from harness import policy, proc

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


def keep_ptx(folder: Path) -> list[str]:
    """Flags that make nvcc leave its intermediate files, which it writes anyway, in `folder`."""
    folder.mkdir(exist_ok=True)
    return ["--keep", "--keep-dir", str(folder)]


def check_built(library: Path, allow: frozenset[str]) -> None:
    """Raises PolicyError if a library, or the PTX that was kept beside it, holds something forbidden; see
    `policy.check_object`. Removes what was kept."""
    kept = sorted(library.parent.glob("ptx*/"))
    try:
        policy.check_object(library, [text for folder in kept for text in sorted(folder.glob("*.ptx"))], allow)
    finally:
        for folder in kept:
            shutil.rmtree(folder, ignore_errors=True)
