"""Who may use which devices now: one file lock per device on this machine, released when its holder dies; and which
devices nobody may use: those in quarantine, a file each, until a person lifts it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from harness.allowance import Allowance
from harness.errors import HarnessError
from harness.types import Frozen

FOLDER = Path("/tmp/ringsmith-leases")
"""The same for all users of the machine, whatever their TMPDIR: a lease protects devices, not accounts."""


class BusyError(HarnessError):
    """Somebody else has the devices."""


class Quarantined(Frozen):
    """A device that did not work even with fresh processes."""

    kind: str
    device: int
    reason: str
    at: float
    """Unix time in seconds."""


class Lease:
    """Devices held together, in ascending order so that two holders cannot wait for each other."""

    def __init__(self, kind: str, devices: Sequence[int]) -> None:
        self.kind, self.devices = kind, tuple(sorted(devices))

    @contextlib.contextmanager
    def hold(self, wait_s: float = 3600.0, allowance: Allowance | None = None) -> Iterator[tuple[int, ...]]:
        """Wait for the devices, then keep them for the block; both are counted in `allowance`. Raises BusyError when
        the wait is over, and BudgetEndedError.

        Yields the locks' descriptors: a process that inherits copies keeps the devices until it has closed them."""
        deadline, files, allowance = time.monotonic() + wait_s, [], allowance or Allowance()
        try:
            for device in self.devices:
                with self._turn(device, deadline, wait_s, allowance):
                    file = _open(self.kind, device)
                    files.append(file)
                    self._lock(file, device, deadline, wait_s, allowance)
            with allowance.holding(len(self.devices)):
                yield tuple(files)
        finally:
            for file in files:
                os.close(file)

    @contextlib.contextmanager
    def _turn(self, device: int, deadline: float, wait_s: float, allowance: Allowance) -> Iterator[None]:
        """Whoever waits for a device holds this: a batch that lets go and asks again at once comes after the others."""
        file = _open(f"{self.kind}-turn", device)
        try:
            self._lock(file, device, deadline, wait_s, allowance)
            yield
        finally:
            os.close(file)

    def _lock(self, file: int, device: int, deadline: float, wait_s: float, allowance: Allowance) -> None:
        if _try_lock(file):
            return
        with allowance.waiting():
            while not _try_lock(file):
                if time.monotonic() > deadline:
                    raise BusyError(f"{self.kind} device {device} stayed leased to another process for {wait_s:.0f} s")
                allowance.check()
                time.sleep(0.02)


def quarantine(kind: str, devices: Sequence[int], reason: str) -> None:
    """Nobody is to use these devices until `lift`. Raises HarnessError if that cannot be written down."""
    for device in devices:
        entry = Quarantined(kind=kind, device=device, reason=reason, at=time.time())
        path = _quarantine_file(kind, device)
        try:
            path.with_suffix(f".{os.getpid()}").write_text(entry.model_dump_json(), encoding="utf-8")
            path.with_suffix(f".{os.getpid()}").replace(path)
        except OSError as error:
            raise HarnessError(
                f"{kind} device {device} does not work ({reason}), and {path}: {error.strerror}"
            ) from None


def quarantined() -> list[Quarantined]:
    """All devices in quarantine, in order."""
    found = []
    for path in _folder().glob("*.quarantine"):
        try:
            found.append(Quarantined.model_validate_json(path.read_text(encoding="utf-8")))
        except (OSError, ValidationError):  # its name still says which
            kind, _, device = path.stem.partition("-")
            if device.isdigit():
                found.append(Quarantined(kind=kind, device=int(device), reason=f"{path} cannot be read", at=0.0))
    return sorted(found, key=lambda entry: (entry.kind, entry.device))


def lift() -> list[Quarantined]:
    """End the quarantine of all devices; returns those that it ends for. Raises HarnessError for another user's."""
    lifted = quarantined()
    for entry in lifted:
        path = _quarantine_file(entry.kind, entry.device)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise HarnessError(f"cannot remove {path}: {error.strerror}") from None
    return lifted


def _quarantine_file(kind: str, device: int) -> Path:
    return _folder() / f"{kind}-{device}.quarantine"


def free_devices(kind: str, candidates: Sequence[int]) -> list[int]:
    """Those devices that nobody holds at this moment and that are not in quarantine."""
    free, out = [], {entry.device for entry in quarantined() if entry.kind == kind}
    for device in candidates:
        if device in out:
            continue
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
