"""Ranks and the processes that they have started: what those use of the processors, and stopping them all. By their
control group where there is one, else by what /proc shows, which misses processes of less than a millisecond."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from harness import proc
from harness.control_group import ControlGroup

_STOPS_S, _ALL_STOP_S = 0.1, 2.0
"""For how long a process may go on after SIGSTOP: one inside a driver stops when it comes back. And in how long all of
them are to have stopped."""


class Followers(Protocol):
    used_stopped_s: float
    """Seconds of the processors that ranks and followers used while all of them were to be `stopped`."""

    def pids(self) -> set[int]:
        """The living processes that the ranks have started: all others in their jail, or, without one, their
        descendants. None when all ranks have ended."""
        ...

    def watch(self) -> Callable[[], float]:
        """Tells how many seconds of the processors they have used since this call."""
        ...

    def stopped(self) -> contextlib.AbstractContextManager[None]:
        """Neither the ranks nor what they have started runs meanwhile, whatever it would do. What was used all the same
        adds to `used_stopped_s`."""
        ...


class ByControlGroup:
    """By their control group."""

    def __init__(self, ranks: Sequence[int], group: ControlGroup) -> None:
        self._ranks, self._group = ranks, group
        self.used_stopped_s = 0.0

    def pids(self) -> set[int]:
        return self._group.pids().difference(self._ranks)

    def watch(self) -> Callable[[], float]:
        before = self._used_s()
        return lambda: max(0.0, self._used_s() - before)

    def _used_s(self) -> float:
        return self._group.cpu_s() - sum(map(proc.cpu_s, self._ranks))

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        with self._group.frozen():
            before = self._group.cpu_s()
            try:
                yield
            finally:
                self.used_stopped_s += max(0.0, self._group.cpu_s() - before)


class ByProc:
    """By what /proc shows."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self._ranks = ranks
        self.used_stopped_s = 0.0

    def pids(self) -> set[int]:
        theirs = next(filter(None, map(proc.namespace, self._ranks)), "")
        if not theirs:  # nor has a process that we may not look at a namespace
            return set()
        if theirs == proc.namespace(os.getpid()):
            started = proc.descendants(self._ranks)
        else:
            inside = {pid for pid in proc.all_pids() if proc.namespace(pid) == theirs}
            started = inside | proc.descendants(inside)  # these may be in a namespace of their own making
        return started.difference(self._ranks)

    def watch(self) -> Callable[[], float]:
        before = {pid: proc.cpu_s(pid) for pid in self.pids()}
        return lambda: sum(max(0.0, proc.cpu_s(pid) - before.get(pid, 0.0)) for pid in self.pids())

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """A process that is stopped uses no processor: what was used all the same, as by one that has itself continued,
        is counted, and so is how long it took in vain where new ones are started without end."""
        held: set[int] = set()
        before, began = dict[int, float](), 0.0
        try:
            # Again until nothing is new: a process that was not yet stopped may have started another. One that is
            # just doing so stops when it has.
            began = time.monotonic()
            while new := {*self._ranks, *self.pids()} - held:
                held |= new
                if time.monotonic() > began + _ALL_STOP_S:  # they start others faster than anybody could stop these
                    self.used_stopped_s += time.monotonic() - began
                    break
                for pid in new:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGSTOP)
                until = time.monotonic() + _STOPS_S
                while any(map(proc.runs, new)) and time.monotonic() < until:
                    time.sleep(0.0002)
            before, began = {pid: proc.cpu_s(pid) for pid in held}, time.monotonic()
            yield
        finally:
            if before:
                self.used_stopped_s += sum(max(0.0, proc.cpu_s(pid) - used) for pid, used in before.items())
                # Nobody could have started these: others before them, of which nothing tells any more, used the time.
                if self.pids() - held:
                    self.used_stopped_s += time.monotonic() - began
            for pid in held:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGCONT)
