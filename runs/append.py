"""A file of JSON lines that only grows, with one writer at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from harness.errors import UsageError

_TAIL_BLOCK_BYTES = 1 << 16


def open_for_append(path: Path, what: str) -> int:
    """Lock the file and cut off a torn last line; returns its descriptor. The lock dies with the process, so a killed
    writer leaves none. Raises UsageError, naming `what`, if another process has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _lock(descriptor)
        os.ftruncate(descriptor, _end_of_whole_lines(descriptor))
    except BlockingIOError:
        os.close(descriptor)
        raise UsageError(f"{what} is being written by another process") from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _lock(descriptor: int) -> None:
    """Raises BlockingIOError if another writer has it. A reader that only asks (`is_being_written`) is waited for."""
    for _ in range(20):
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(0.01)
    raise BlockingIOError


def append_line(descriptor: int, line: bytes) -> None:
    """On the disk when this returns. If it raises, all of the line was written or nothing."""
    start = os.fstat(descriptor).st_size
    try:
        written = 0
        while written < len(line):
            written += os.write(descriptor, line[written:])
    except BaseException:
        # A full disk or Ctrl-C: half a line must not be followed by another event.
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, start)
        raise
    os.fsync(descriptor)


def _end_of_whole_lines(descriptor: int) -> int:
    """Offset just after the last newline."""
    return _rfind_newline(descriptor, os.fstat(descriptor).st_size) + 1


def last_whole_line(descriptor: int) -> bytes:
    end = _end_of_whole_lines(descriptor)
    if end == 0:
        return b""
    start = _rfind_newline(descriptor, end - 1) + 1
    return os.pread(descriptor, end - start, start)


def _rfind_newline(descriptor: int, end: int) -> int:
    """Offset of the last newline before `end`, or -1."""
    while end > 0:
        start = max(0, end - _TAIL_BLOCK_BYTES)
        found = os.pread(descriptor, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found
        end = start
    return -1


def is_locked(path: Path) -> bool:
    """Whether some process (this one included) holds the file open for appending."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
