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
    """A file of one slot per rank. Created by the supervisor, written by the ranks."""

    def __init__(self, path: Path, world_size: int, *, create: bool = False) -> None:
        fd = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
        try:
            if create:
                os.ftruncate(fd, world_size * _SLOT)
            self._map = mmap.mmap(fd, world_size * _SLOT)
        finally:
            os.close(fd)

    def read(self, rank: int) -> Words:
        phase, calls, completed, at_ns, line = _WORDS.unpack_from(self._map, rank * _SLOT)
        try:
            known = Phase(phase)
        except ValueError:  # the candidate can write here too; nothing but the hang report reads it
            known = Phase.idle
        return Words(known, calls, completed, at_ns, line)

    def close(self) -> None:
        self._map.close()


class Progress:
    """A rank's own slot."""

    def __init__(self, board: ProgressBoard, rank: int) -> None:
        self._board, self._offset = board, rank * _SLOT
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
        _WORDS.pack_into(self._board._map, self._offset, *words)

    def launch(self, line: int) -> None:
        """A line of the candidate calls a function of a kit library."""
        self.line = line
        self.touch()
