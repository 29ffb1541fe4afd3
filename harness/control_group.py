"""A control group (cgroup v2) of all processes of a set of ranks, whatever they start: it stops them at one stroke and
accounts for all their processor time, however short they lived. Standard library only.

No controller is needed, only a place where this user may make groups: root has one, unless the machine is a container
with a read-only /sys/fs/cgroup.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from harness import removal

_STOPS_S = 2.0
"""So long it may take until all processes stand still: those inside a driver do when they come back."""


class ControlGroup:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def make(self) -> None:
        """Raises OSError."""
        self._folder.mkdir()

    def add(self, pid: int) -> None:
        """A process, and so all that it will start. Raises OSError."""
        self._write("cgroup.procs", str(pid))

    def pids(self) -> set[int]:
        """Of all processes in it that have not ended; none if it is gone."""
        return set(map(int, self._read("cgroup.procs").split()))

    def cpu_s(self) -> float:
        """Seconds of the processors that all had who have ever been in it, while they were; 0 if it is gone."""
        return next((int(line.split()[1]) / 1e6 for line in self._lines("cpu.stat") if line.startswith("usage_")), 0.0)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Nothing in it runs meanwhile. (Something that the kernel does not let go of may, at first.)"""
        try:
            self._freeze(True)
            yield
        finally:
            self._freeze(False)

    def _freeze(self, on: bool) -> None:
        with contextlib.suppress(OSError):
            self._write("cgroup.freeze", "1" if on else "0")
        until = time.monotonic() + _STOPS_S
        while on and "frozen 0" in self._lines("cgroup.events") and time.monotonic() < until:
            time.sleep(0.0002)

    def kill(self) -> None:
        """SIGKILL all, where the kernel can do that (5.14)."""
        with contextlib.suppress(OSError):
            self._write("cgroup.kill", "1")

    def remove(self) -> None:
        """Of a group without processes; one that has some stays."""
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def _lines(self, name: str) -> list[str]:
        return self._read(name).splitlines()

    def _read(self, name: str) -> str:
        try:
            return (self._folder / name).read_text()
        except OSError:
            return ""

    def _write(self, name: str, text: str) -> None:
        # Not opened as a new file: where the group is gone there is none to be made.
        descriptor = os.open(self._folder / name, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)


def group_name() -> str:
    """Of a new group of this process."""
    return f"ringsmith-{os.getpid()}-{secrets.token_hex(4)}"


def find_home() -> Path:
    """The folder in which this process can make groups, found by making one. Raises OSError, which says why there is
    none."""
    home = _own_folder()
    for folder in removal.orphans(home):
        ControlGroup(folder).kill()
        ControlGroup(folder).remove()
    group = ControlGroup(home / group_name())
    group.make()
    try:
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as inside:  # ends when its input does
            group.add(inside.pid)
            if inside.pid not in group.pids() or not group._read("cpu.stat").startswith("usage_"):
                raise OSError("a group does not tell of a process and its time")
        # Empty: should this process be killed now, one that is frozen would be there for ever.
        with group.frozen():
            if "frozen 1" not in group._lines("cgroup.events"):
                raise OSError("a group cannot be frozen")
    finally:
        group.remove()
    return home


def _own_folder() -> Path:
    """Of the group that this process is in. Raises OSError."""
    own = next((line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")), "")
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        fields, _, kind = line.partition(" - ")
        root, place = fields.split()[3:5]
        if own and kind.startswith("cgroup2 ") and f"{own}/".startswith(root if root == "/" else f"{root}/"):
            return Path(place, own.removeprefix(root).lstrip("/"))
    raise OSError("no file system of kind cgroup2 is mounted")
