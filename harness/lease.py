"""Who may use which devices now: one file lock per device on this machine, released when its holder dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.errors import HarnessError

FOLDER = Path("/tmp/ringsmith-leases")
"""The same for all users of the machine, whatever their TMPDIR: a lease protects devices, not accounts."""


class BusyError(HarnessError):
    """Somebody else has the devices."""


class Lease:
    """Devices held together, in ascending order so that two holders cannot wait for each other."""

    def __init__(self, kind: str, devices: Sequence[int]) -> None:
        self.kind, self.devices = kind, tuple(sorted(devices))
        self.held_s = 0.0
        """Seconds held so far, all holdings together; multiply by the number of devices for device-seconds."""

    @contextlib.contextmanager
    def hold(self, wait_s: float = 3600.0) -> Iterator[tuple[int, ...]]:
        """Wait for the devices, then keep them for the block. Raises BusyError when the wait is over.

        Yields the locks' descriptors: a process that inherits copies keeps the devices until it has closed them."""
        deadline, files = time.monotonic() + wait_s, []
        try:
            for device in self.devices:
                with self._turn(device, deadline, wait_s):
                    file = _open(self.kind, device)
                    files.append(file)
                    self._lock(file, device, deadline, wait_s)
            started = time.monotonic()
            try:
                yield tuple(files)
            finally:
                self.held_s += time.monotonic() - started
        finally:
            for file in files:
                os.close(file)

    @contextlib.contextmanager
    def _turn(self, device: int, deadline: float, wait_s: float) -> Iterator[None]:
        """Whoever waits for a device holds this: a batch that lets go and asks again at once comes after the others."""
        file = _open(f"{self.kind}-turn", device)
        try:
            self._lock(file, device, deadline, wait_s)
            yield
        finally:
            os.close(file)

    def _lock(self, file: int, device: int, deadline: float, wait_s: float) -> None:
        while not _try_lock(file):
            if time.monotonic() > deadline:
                raise BusyError(f"{self.kind} device {device} stayed leased to another process for {wait_s:.0f} s")
            time.sleep(0.02)


def free_devices(kind: str, candidates: Sequence[int]) -> list[int]:
    """Those devices that nobody holds at this moment."""
    free = []
    for device in candidates:
        file = _open(kind, device)
        if _try_lock(file):
            free.append(device)
        os.close(file)
    return free


def _open(kind: str, device: int) -> int:
    """The lock file's descriptor. Read-only, and created apart: another user's file can be locked but not written, and
    in a sticky folder Linux refuses even to open it with O_CREAT."""
    path = _folder() / f"{kind}-{device}.lock"
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o644))
    return os.open(path, os.O_RDONLY)


def _folder() -> Path:
    folder = FOLDER
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o777)
        os.chmod(folder, 0o1777)
    return folder


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
