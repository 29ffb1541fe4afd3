"""Views of runs that keep up with their records, one for all who look at the same run."""

from __future__ import annotations

import threading
from collections import OrderedDict

from harness.errors import UsageError
from runs.events import EVENT, RunStarted
from runs.view import View
from service.jobs.tail import Tail

_KEPT = 16


class Live:
    """Thread-safe, but for what it hands out: `view` goes on to change when somebody calls `catch_up`."""

    def __init__(self, tail: Tail) -> None:
        self.tail = tail
        self.view: View | None = None
        """None before the run's first event."""
        self.events = 0
        """Events that are in it: another number, another view."""
        self._lock = threading.Lock()

    def catch_up(self) -> int:
        """Read what is new; the number of events. Takes seconds for the first look at a large record. Raises UsageError
        for a line that is no event."""
        with self._lock:
            self.tail.catch_up()
            if self.events > len(self.tail):  # another file is there now
                self.view, self.events = None, 0
            while lines := self.tail.lines(self.events):
                for line in lines:
                    self._add(line)
            return self.events

    @property
    def status(self) -> str:
        view = self.view
        return view.state.run(self.tail.is_live()).status if view else "queued"

    def _add(self, line: bytes) -> None:
        try:
            event = EVENT.validate_json(line)
        except ValueError:
            raise UsageError(f"{self.tail.path.name}, line {self.events + 1}: not an event") from None
        if self.view is not None:
            self.view.add(event)
        elif isinstance(event, RunStarted):
            self.view = View(event)
        else:
            raise UsageError(f"{self.tail.path.name} does not begin with run_started")
        self.events += 1


class Lives:
    """The views that were looked at last. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lives: OrderedDict[Tail, Live] = OrderedDict()

    def of(self, tail: Tail) -> Live:
        with self._lock:
            live = self._lives.pop(tail, None) or Live(tail)
            self._lives[tail] = live
            while len(self._lives) > _KEPT:
                self._lives.popitem(last=False)
            return live
