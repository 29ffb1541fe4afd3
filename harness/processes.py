"""The processes of one session: fork server, long-lived reference ranks, sets of candidate ranks; and the devices they
may use. Imports no torch."""

from __future__ import annotations

import os
from pathlib import Path

from harness import cache, diagnosis, machine, platforms
from harness.errors import SandboxError
from harness.lease import Lease, free_devices
from harness.platforms import cuda
from harness.ranks import Nursery, Outcome, RankSet
from harness.types import Environment, Limits, PlatformName, Stage
from problems.catalogue import Entry
from problems.spec import Case, ProblemError, Work

_PASSED_ON = {"PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_HOME", "PYTHONPATH", "VIRTUAL_ENV"}
"""Environment variables that ranks inherit; nothing else of the user's reaches them."""


class Processes:
    """Started when first needed: a request that cannot be costs none. Not thread-safe."""

    def __init__(self, platform: PlatformName, world_size: int, limits: Limits) -> None:
        self.world_size, self.limits = world_size, limits
        self.platform = platforms.get(platform)
        self._started: Nursery | None = None
        self._reference: RankSet | None = None
        self._prepared: tuple[int, Case, str] | None = None
        """What the reference ranks are set up for."""
        self._lease: Lease | None = None
        self._work: dict[tuple[int, str, str], Work] = {}

    def close(self) -> None:
        """End them all. Safe to call twice; the next use starts fresh ones."""
        if self._reference is not None:
            self._reference.forget()
            self._reference = None
        if self._started is not None:
            self._started.close()
            self._started = None

    @property
    def _nursery(self) -> Nursery:
        if self._started is None:
            self._started = Nursery()
        return self._started

    @property
    def scratch(self) -> Path:
        """This session's folder in shared memory."""
        return self._nursery.scratch

    def environment(self) -> Environment:
        """Where evaluations of this session run."""
        versions = self._nursery.versions
        gpus = machine.gpus() if self.platform.name == "cuda" else ()
        return Environment(
            platform=self.platform.name,
            devices=self.platform.device_names()[: self.world_size],
            driver=gpus[0].driver if gpus else "",
            cuda=versions["cuda"],
            torch=versions["torch"],
            python=versions["python"],
            harness=machine.harness_version(),
            isolation=("separate processes", "fixed environment"),
        )

    def inspect(self, entry: Entry, case: Case, dtype: str) -> Work:
        """The problem's work at a case. Raises ProblemError if it cannot run at this world size."""
        key = (entry.number, case.name, dtype)
        if key not in self._work:
            reply = self._nursery.inspect(entry.number, case.name, dict(case.sizes), self.world_size, dtype)
            if reply["illegal"]:
                raise ProblemError(f"problem {entry.number} ({entry.name}), case {case}: {reply['illegal']}")
            self._work[key] = Work(**reply["work"])
        return self._work[key]

    def lease(self) -> Lease:
        """The devices of this session: chosen once, where the reference ranks will live."""
        if self._lease is None:
            if self.platform.name == "cpu":
                # Cores are shared by everything on the machine: one measurement at a time.
                self._lease = Lease("cpu", [0])
            else:
                there = [gpu.index for gpu in machine.gpus()]
                free = free_devices("cuda", there)
                self._lease = Lease("cuda", (free if len(free) >= self.world_size else there)[: self.world_size])
        return self._lease

    def spawn(self, role: str, world_size: int | None = None) -> RankSet:
        """New processes in a role (see `harness.rank`), as many as the session has ranks unless given."""
        environment = {name: value for name, value in os.environ.items() if name in _PASSED_ON}
        environment |= {
            "RINGSMITH_CACHE": str(cache.root()),
            "TRITON_CACHE_DIR": str(cache.root() / "triton"),
            "OMP_NUM_THREADS": "1",
            **machine.MULTICAST_SWITCHES,
        }
        if self.platform.name == "cuda":
            environment[cuda.ARCH_VARIABLE] = cuda.architecture()
            if role != "build":
                environment |= cuda.rank_environment(self.lease().devices)
        return self._nursery.spawn(
            role, world_size or self.world_size, {"platform": self.platform.name, "environment": environment}
        )

    def reference(self) -> RankSet:
        """The reference ranks, started if there are none."""
        if self._reference is None:
            ranks = self.spawn("reference")
            self._reference, self._prepared = ranks, None
            self.expect(ranks.ask("connect", {}, deadline_s=self.limits.start_s), "starting the reference ranks")
        return self._reference

    def prepare(self, entry: Entry, case: Case, dtype: str) -> RankSet:
        """The reference ranks, set up for a problem."""
        ranks = self.reference()
        if self._prepared != (entry.number, case, dtype):
            setup = {"problem": entry.number, "case": case.name, "sizes": dict(case.sizes), "dtype": dtype}
            self.expect(ranks.ask("setup", setup, deadline_s=60), "loading the problem")
            self._prepared = (entry.number, case, dtype)
        return ranks

    def expect(self, outcome: Outcome, doing: str) -> Outcome:
        """The outcome of asking the reference ranks; their failure is ours. Discards them, so the next call starts
        fresh ones."""
        if not outcome.ok and self._reference is not None:
            logs = [self._reference.log(rank) for rank in range(self.world_size)]
            _, summary, reports = diagnosis.judge_failure(outcome, Stage.correctness, logs)
            self._reference.kill()
            self._reference = None
            details = "".join(f"\nrank {r.rank}: {r.message}\n{r.stack}{r.stderr[-800:]}" for r in reports if not r.ok)
            raise SandboxError(f"{doing} failed: {summary}{details}")
        return outcome
