"""The sandboxes that all jobs share: a pool for each kind of place that candidates run in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.allowance import Allowance
from harness.pool import Pool, local
from harness.profile_types import Profile
from harness.stages import OnStage
from harness.types import BuildReport, Candidate, Evaluation, IsolationLevel, PlatformName, Request, Topology
from problems.catalogue import Entry
from problems.spec import Case, Work

Key = tuple[PlatformName, int, IsolationLevel]
MakePool = Callable[[PlatformName, int, IsolationLevel], Pool]


class Pools:
    """Thread-safe. A pool stays for the next job, until one of another kind is wanted and nobody uses it."""

    def __init__(self, make: MakePool = local) -> None:
        self._make = make
        self._pools: dict[Key, Pool] = {}
        self._users: dict[Key, int] = {}
        self._lock = threading.Lock()
        self._stopped = False

    @contextmanager
    def lent(self, platform: PlatformName, world_size: int, isolation: IsolationLevel) -> Iterator[Pool]:
        """Raises HarnessError or UsageError if this machine cannot have it, KeyboardInterrupt after `stop`."""
        key: Key = (platform, world_size, isolation)
        with self._lock:
            if self._stopped:
                raise KeyboardInterrupt
            if key not in self._pools:
                self._close_idle()
                self._pools[key] = self._make(*key)
            self._users[key] = self._users.get(key, 0) + 1
            pool = self._pools[key]
        try:
            yield pool
        finally:
            with self._lock:
                self._users[key] -= 1

    def sizes(self) -> list[tuple[Key, int, int]]:
        """Of each pool: its kind, its sandboxes, and how many requests wait for one."""
        with self._lock:
            return [(key, len(pool), pool.waiting) for key, pool in self._pools.items()]

    def stop(self) -> None:
        """Answer nobody from now on, as `Pool.stop`."""
        with self._lock:
            self._stopped = True
            for pool in self._pools.values():
                pool.stop()

    def close(self) -> None:
        """End every process."""
        self.stop()
        with self._lock:
            for pool in self._pools.values():
                pool.close()
            self._pools.clear()

    def _close_idle(self) -> None:
        for key in [key for key in self._pools if not self._users.get(key)]:
            self._pools.pop(key).close()


class Share:
    """A sweep's part in a pool: it can be stopped and the others go on."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._stopped = threading.Event()
        self.platform_name, self.world_size, self.limits = pool.platform_name, pool.world_size, pool.limits

    def stop(self) -> None:
        self._stopped.set()

    @property
    def _open(self) -> Pool:
        if self._stopped.is_set():
            raise KeyboardInterrupt
        return self._pool

    def inspect(self, entry: Entry, case: Case, dtype: str) -> Work:
        return self._open.inspect(entry, case, dtype)

    def topology(self) -> Topology:
        return self._open.topology()

    def warm_up(self) -> None:
        self._open.warm_up()

    def compile(self, candidate: Candidate, *, allowance: Allowance | None = None) -> BuildReport:
        return self._open.compile(candidate, allowance=allowance)

    def evaluate(
        self,
        request: Request,
        on_stage: OnStage | None = None,
        *,
        last: bool = False,
        allowance: Allowance | None = None,
    ) -> Evaluation:
        return self._open.evaluate(request, on_stage, last=last, allowance=allowance)

    def profile(
        self, request: Request, folder: Path, kernel: str = "", *, allowance: Allowance | None = None
    ) -> tuple[Profile, float]:
        return self._open.profile(request, folder, kernel, allowance=allowance)
