"""Threads that do what is put to them, in order and so many at once."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable


class Crew:
    """Its threads end with the process: whoever wants what they do to be whole has to wait."""

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = self.busy = self._left = 0
        self._stopped = False

    @property
    def waiting(self) -> int:
        return max(0, self._left - self.busy)

    def put(self, work: Callable[[], None]) -> None:
        """`work` must not raise."""
        with self._lock:
            self._left += 1
            self._queue.put(work)
            if self._left > self._threads and self._threads < self._most:
                self._threads += 1
                threading.Thread(target=self._work, name=f"{self._name}-{self._threads}", daemon=True).start()

    def stop(self, wait_s: float, left: Callable[[], bool] = lambda: True) -> None:
        """Begin nothing more, and wait for what has begun, for so long or until `left` says that no more need be waited
        for."""
        self._stopped = True
        until = time.monotonic() + wait_s
        while self.busy and left() and time.monotonic() < until:
            time.sleep(0.05)

    def _work(self) -> None:
        while True:
            work = self._queue.get()
            if self._stopped:
                return
            with self._lock:
                self.busy += 1
            try:
                work()
            finally:
                with self._lock:
                    self.busy -= 1
                    self._left -= 1
