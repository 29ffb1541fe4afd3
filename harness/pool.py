"""Several sandboxes behind one `Evaluator`, for many threads: each request borrows one, so that a run that thinks holds
none. Imports no torch."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from harness import machine
from harness.allowance import Allowance
from harness.errors import HarnessError
from harness.evaluate import Evaluator, Sandbox
from harness.neighbours import gpu_sets
from harness.profile_types import Profile
from harness.stages import OnStage
from harness.types import (
    BuildReport,
    Candidate,
    Evaluation,
    IsolationLevel,
    Limits,
    PlatformName,
    Request,
    Topology,
)
from problems.catalogue import Entry
from problems.spec import Case, Work

_T = TypeVar("_T")
_CORES_PER_BUILD = 8
_MOST_BUILDERS = 4
_SANDBOXES_PER_SET = 2
"""While one measures, the other is given its candidate and waits for the lease."""

_LOOK_S = 0.1
"""How often a call that waits looks whether a limit has ended it."""


class LostError(HarnessError):
    """The machine of a sandbox is gone. What was asked for has had no effect and may be asked elsewhere."""


class Member(Evaluator, Protocol):
    """A sandbox of a pool: used by one thread at a time."""

    def know(self, report: BuildReport) -> None: ...

    def usable(self) -> bool:
        """Whether it may still be asked, after it has raised HarnessError."""
        ...

    def close(self) -> None: ...


class Pool:
    """Thread-safe. Requests raise what their sandbox raises; HarnessError once none is left; KeyboardInterrupt after
    `stop`."""

    def __init__(
        self,
        platform: PlatformName,
        world_size: int,
        members: Sequence[Member],
        builders: Sequence[Member] = (),
        patience_s: float = 0.0,
    ) -> None:
        """`builders` build and never measure; without any, the members do it. `patience_s`: how long a request waits
        for one to be added when none is left."""
        self.platform_name: PlatformName = platform
        self.world_size = world_size
        self.limits = Limits()
        self._members = _Members(members, patience_s)
        self._builders = _Members(builders, patience_s) if builders else None
        self._topology: Topology | None = None
        self._work: dict[tuple[str, int, str, str], Work] = {}
        self._once = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stop(self) -> None:
        """Answer nobody who waits, and nobody who asks from now on; what is under way comes to its end."""
        for members in filter(None, (self._members, self._builders)):
            members.stop()

    def close(self) -> None:
        """End every process."""
        self.stop()
        for members in filter(None, (self._members, self._builders)):
            for member in members.all:
                member.close()

    def add(self, member: Member) -> None:
        self._members.add(member)

    @property
    def waiting(self) -> int:
        """How many requests wait for a sandbox that measures."""
        return self._members.waiting

    def __len__(self) -> int:
        """Sandboxes that measure."""
        return len(self._members.all)

    def inspect(self, entry: Entry, case: Case, dtype: str) -> Work:
        key = (entry.suite, entry.number, case.name, dtype)
        with self._once:
            if key not in self._work:
                builders = self._builders or self._members
                self._work[key] = builders.ask(lambda member: member.inspect(entry, case, dtype))
            return self._work[key]

    def topology(self) -> Topology:
        with self._once:
            if self._topology is None:
                self._topology = self._members.ask(lambda member: member.topology())
            return self._topology

    def warm_up(self) -> None:
        """Nothing: sandboxes that others use are warm."""

    def compile(self, candidate: Candidate, *, allowance: Allowance | None = None) -> BuildReport:
        builders = self._builders or self._members
        return builders.ask(lambda member: member.compile(candidate, allowance=allowance), candidate.hash, allowance)

    def evaluate(
        self,
        request: Request,
        on_stage: OnStage | None = None,
        *,
        last: bool = False,
        allowance: Allowance | None = None,
    ) -> Evaluation:
        """As a sandbox does. `last` is one run's word; others come after it."""

        def evaluate(member: Member) -> Evaluation:
            if report is not None:
                member.know(report)
            return member.evaluate(request, on_stage, allowance=allowance)

        report = self.compile(request.candidate, allowance=allowance) if self._builders else None
        return self._members.ask(evaluate, (request.suite, request.problem, request.case), allowance)

    def profile(
        self, request: Request, folder: Path, kernel: str = "", *, allowance: Allowance | None = None
    ) -> tuple[Profile, float]:
        def profile(member: Member) -> tuple[Profile, float]:
            if report is not None:
                member.know(report)
            return member.profile(request, folder, kernel, allowance=allowance)

        report = self.compile(request.candidate, allowance=allowance) if self._builders else None
        return self._members.ask(profile, (request.suite, request.problem, request.case), allowance)


class _Members:
    """Sandboxes that are lent to one request at a time."""

    def __init__(self, members: Sequence[Member], patience_s: float) -> None:
        self.all = list(members)
        self.waiting = 0
        self._free = list(members)
        self._used_for: dict[int, Any] = {}
        self._patience_s = patience_s
        self._changed = threading.Condition()
        self._stopped = False

    def add(self, member: Member) -> None:
        with self._changed:
            self.all.append(member)
            self._free.append(member)
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def ask(self, request: Callable[[Member], _T], like: Any = None, allowance: Allowance | None = None) -> _T:
        """The answer of a sandbox, if possible of one that has been asked something alike before. Waiting for one is no
        work of the call that `allowance` bounds."""
        while True:
            try:
                with self._lent(like, allowance or Allowance()) as member:
                    return request(member)
            except LostError:
                continue

    @contextlib.contextmanager
    def _lent(self, like: Any, allowance: Allowance) -> Iterator[Member]:
        with allowance.waiting():
            member = self._take(like, allowance)
        usable = True
        try:
            yield member
        except HarnessError:
            usable = member.usable()
            raise
        finally:
            self._give(member, like, usable)

    def _take(self, like: Any, allowance: Allowance) -> Member:
        with self._changed:
            self.waiting += 1
            try:
                # While there are any, one comes back; else one may be added.
                while not (self._stopped or self._free):
                    if self.all:
                        self._changed.wait(_LOOK_S if allowance.bounded else None)
                        allowance.check()
                    elif not self._changed.wait_for(lambda: self._stopped or self.all, self._patience_s):
                        raise HarnessError("no sandbox is left: see `ringsmith doctor`")
            finally:
                self.waiting -= 1
            if self._stopped:
                raise KeyboardInterrupt
            chosen = next((m for m in self._free if self._used_for.get(id(m)) == like), self._free[-1])
            self._free.remove(chosen)
            return chosen

    def _give(self, member: Member, like: Any, usable: bool) -> None:
        with self._changed:
            if usable:
                self._used_for[id(member)] = like
                self._free.append(member)
            else:
                self.all.remove(member)
                self._used_for.pop(id(member), None)
            self._changed.notify_all()
        if not usable:
            with contextlib.suppress(HarnessError):
                member.close()


def local(platform: PlatformName, world_size: int, isolation: IsolationLevel = "auto") -> Pool:
    """A pool over this machine's devices. Raises HarnessError if there are too few."""
    cores = machine.cpu().cores
    spare = min(_MOST_BUILDERS, (cores - 2 * world_size) // _CORES_PER_BUILD)
    if platform == "cpu":
        # One device; and ranks are timed on the cores that a build would use, so few cores build and time in turns.
        members = [Sandbox(platform, world_size, isolation=isolation) for _ in range(2 if spare > 0 else 1)]
    else:
        sets = gpu_sets(world_size)
        if not sets:
            raise HarnessError(f"{world_size} GPUs are needed that are not in quarantine: see `ringsmith doctor`")
        members = [
            Sandbox(platform, world_size, isolation=isolation, devices=devices)
            for _ in range(_SANDBOXES_PER_SET)
            for devices in sets
        ]
        spare = max(1, spare)
    builders = [Sandbox(platform, world_size, isolation=isolation) for _ in range(max(0, spare))]
    return Pool(platform, world_size, members, builders)
