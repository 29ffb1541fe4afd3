"""Progress words: each rank writes where it is into shared memory, so that a hang can be read from outside."""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

_WORDS = struct.Struct("<qqqqq")
_SLOT = 64  # one cache line a rank
_MAX_LINE = 10**9


class Phase(IntEnum):
    idle = 0
    loading = 1
    building = 2
    calling = 3
    """Inside `solution` on the host."""
    draining = 4
    """`solution` returned; waiting for the device."""


@dataclass(frozen=True)
class Words:
    phase: Phase
    calls: int
    """Calls begun so far."""
    completed: int
    at_ns: int
    """CLOCK_MONOTONIC of the last change."""
    line: int = 0
    """Line of the candidate that last called a function of a kit library; 0 for none. Not noted in timed calls."""


class ProgressBoard:
    """A file of one slot per rank. Created and read by the supervisor; mapped and written by the ranks, which keep a
    descriptor with the map: whoever else mapped it would end with SIGBUS once one of them has made it shorter."""

    def __init__(self, path: Path, world_size: int, *, create: bool = False) -> None:
        fd = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
        self._fd: int | None = fd
        self._map: mmap.mmap | None = None
        self._size = world_size * _SLOT
        if create:
            os.ftruncate(fd, self._size)

    def words(self) -> mmap.mmap:
        """The words of all ranks, to be written."""
        if self._map is None:
            assert self._fd is not None, "closed"
            self._map = mmap.mmap(self._fd, self._size)
        return self._map

    def read(self, rank: int) -> Words:
        """A look from outside; all zeros for words that somebody has cut off, 0 for a line that
        cannot be."""
        assert self._fd is not None, "closed"
        words = os.pread(self._fd, _WORDS.size, rank * _SLOT)
        phase, calls, completed, at_ns, line = _WORDS.unpack(words.ljust(_WORDS.size, b"\0"))
        try:
            known = Phase(phase)
        except ValueError:  # the candidate can write here too; nothing but the hang report reads it
            known = Phase.idle
        return Words(known, calls, completed, at_ns, line if 0 <= line <= _MAX_LINE else 0)

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
        if self._fd is not None:
            os.close(self._fd)
            self._map = self._fd = None


class Progress:
    """A rank's own slot."""

    def __init__(self, board: ProgressBoard, rank: int) -> None:
        self._words, self._offset = board.words(), rank * _SLOT
        self.phase, self.calls, self.completed, self.line = Phase.idle, 0, 0, 0

    def enter(self, phase: Phase) -> Phase:
        """Change phase; returns the former one."""
        former, self.phase = self.phase, phase
        if phase is Phase.calling:
            self.calls += 1
        self.touch()
        return former

    def complete(self) -> None:
        """Every call begun so far has finished on the device."""
        self.completed = self.calls
        self.enter(Phase.idle)

    def touch(self) -> None:
        """Show that the rank is alive without a change of phase."""
        words = (self.phase, self.calls, self.completed, time.monotonic_ns(), self.line)
        _WORDS.pack_into(self._words, self._offset, *words)

    def launch(self, line: int) -> None:
        """A line of the candidate calls a function of a kit library."""
        self.line = line
        self.touch()
