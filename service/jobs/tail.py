"""A record's events as they are written, by whatever process: which lines there are, and the run that they fold to."""

from __future__ import annotations

import json
import os
import threading
from array import array
from collections import OrderedDict
from pathlib import Path

from harness.errors import UsageError
from runs.append import is_locked
from runs.events import EVENT, RunFinished, RunStarted, is_final
from runs.fold import Folding, Run

_BLOCK_BYTES = 1 << 20


class Tail:
    """Thread-safe. Knows where each whole line ends (8 bytes an event); the lines themselves stay on the disk."""

    def __init__(self, path: Path) -> None:
        """`path` is the run's folder, which need not be there yet."""
        self.path = path
        self._file = path / "events.jsonl"
        self._lock = threading.Lock()
        self._folds = threading.RLock()
        """Apart from the other: folding a large record takes seconds."""
        self._ends = array("Q")
        self._size = 0
        self._folding: Folding | None = None
        self._folded = 0

    def __len__(self) -> int:
        """Events that are known of."""
        return len(self._ends)

    def catch_up(self) -> bool:
        """Look for new lines; whether there were any."""
        try:
            size = os.stat(self._file).st_size
        except OSError:
            return False
        if size == self._size:
            return False
        with self._lock:
            if size < self._size:
                self._cut(size)
            before = len(self._ends)
            with self._file.open("rb") as file:
                start = self._ends[-1] if self._ends else 0
                file.seek(start)
                while block := file.read(_BLOCK_BYTES):
                    at = block.find(b"\n")
                    while at >= 0:
                        self._ends.append(start + at + 1)
                        at = block.find(b"\n", at + 1)
                    start += len(block)
                    self._size = start
            return len(self._ends) > before

    def lines(self, after: int, most: int = 1000, most_bytes: int = _BLOCK_BYTES) -> list[bytes]:
        """Events behind number `after` (from 1; 0: from the first), without their newlines: at most so many, and so
        many bytes unless the first alone has more."""
        with self._lock:
            first, last = max(0, after), min(len(self._ends), max(0, after) + most)
            if first >= last:
                return []
            start = self._ends[first - 1] if first else 0
            while last > first + 1 and self._ends[last - 1] - start > most_bytes:
                last -= 1
            end = self._ends[last - 1]
        with self._file.open("rb") as file:
            file.seek(start)
            return file.read(end - start).split(b"\n")[:-1]

    def folding(self) -> Folding | None:
        """The state after the events so far; None without any. It goes on to change. Raises UsageError for a line that
        is no event."""
        self.catch_up()
        with self._folds:
            if self._folded > len(self._ends):
                self._folding, self._folded = None, 0
            while lines := self.lines(self._folded):
                for line in lines:
                    self._fold(line)
            return self._folding

    def run(self) -> Run | None:
        """The run so far; None before its first event. Raises UsageError."""
        with self._folds:
            state = self.folding()
            return state.run(live=self.is_live()) if state else None

    def is_live(self) -> bool:
        """Whether some process writes it."""
        try:
            return is_locked(self._file)
        except OSError:
            return False

    def end(self) -> RunFinished | None:
        """The last event if it ends the run."""
        last = self.lines(len(self._ends) - 1) if self._ends else []
        if not last or b'"run_finished"' not in last[0][:200] or json.loads(last[0])["kind"] != "run_finished":
            return None
        return RunFinished.model_validate_json(last[0])

    def has_final_end(self) -> bool:
        return (end := self.end()) is not None and is_final(end.reason)

    def _fold(self, line: bytes) -> None:
        try:
            event = EVENT.validate_json(line)
        except ValueError:
            raise UsageError(f"{self._file}, line {self._folded + 1}: not an event") from None
        if self._folding is not None:
            self._folding.add(event)
        elif isinstance(event, RunStarted):
            self._folding = Folding(event)
        else:
            raise UsageError(f"{self._file} does not begin with run_started")
        self._folded += 1

    def _cut(self, size: int) -> None:
        """A writer took back a line that it could not write whole, or another file is there now."""
        while self._ends and self._ends[-1] > size:
            self._ends.pop()
        self._size = self._ends[-1] if self._ends else 0


class Tails:
    """The tails that were used last. Thread-safe."""

    def __init__(self, most: int = 128) -> None:
        self._most, self._lock = most, threading.Lock()
        self._tails: OrderedDict[Path, Tail] = OrderedDict()

    def get(self, path: Path) -> Tail:
        with self._lock:
            tail = self._tails.pop(path, None)
            if tail is None:
                tail = Tail(path)
            self._tails[path] = tail
            while len(self._tails) > self._most:
                self._tails.popitem(last=False)
            return tail

    def forget(self, path: Path) -> None:
        with self._lock:
            self._tails.pop(path, None)
