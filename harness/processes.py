"""The processes of one session: fork server, long-lived reference ranks, the next candidate's ranks brought up ahead of
time; and the devices they may use. Imports no torch."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

from harness import cache, diagnosis, jail, lease, machine, measure, platforms
from harness.allowance import Allowance
from harness.clocks import Clocks
from harness.errors import HarnessError, SandboxError
from harness.jail import Jail
from harness.lease import BusyError, Lease, free_devices
from harness.nursery import Nursery
from harness.outcomes import Outcome
from harness.platforms import cuda
from harness.ranks import RankSet
from harness.types import Environment, IsolationLevel, Limits, PlatformName, Stage
from problems.catalogue import Entry
from problems.spec import Case, ProblemError, Work

_PASSED_ON = {"PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_HOME", "PYTHONPATH", "VIRTUAL_ENV", "RINGSMITH_ALLOW"}
_PASSED_ON |= {machine.KITTENS_VARIABLE}
"""Environment variables that ranks inherit; nothing else of the user's reaches them."""


_PROBE_S = 10.0
_KEPT_BYTES, _MEMORY_S = 64 << 20, 5.0
"""GPU memory that may be held by nobody beyond what was before, and how long the driver gets to take it back."""


def _passed_on() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name in _PASSED_ON}


class Processes:
    """Started when first needed: a request that cannot be costs none. Not thread-safe."""

    def __init__(
        self,
        platform: PlatformName,
        world_size: int,
        limits: Limits,
        isolation: IsolationLevel = "auto",
        devices: Sequence[int] | None = None,
    ) -> None:
        """`devices` are the GPUs to lease, one a rank; None: chosen when they are first needed."""
        self.world_size, self.limits, self.isolation = world_size, limits, isolation
        self._devices = devices
        self.platform = platforms.get(platform)
        self.allowance = Allowance()
        """Of the call that is going on: looked at wherever ranks are waited for."""
        self._started: Nursery | None = None
        self._reference: RankSet | None = None
        self._warm: RankSet | None = None
        """The next candidate's ranks, told to connect."""
        self._prepared: tuple[str, int, Case, str] | None = None
        """What the reference ranks are set up for."""
        self._lease: Lease | None = None
        self._clocks: Clocks | None = None
        self._unowned: list[int] | None = None
        """Per leased GPU, bytes that belonged to no process before this session used it."""
        self._worked = False
        """Whether reference ranks have ever come up on these devices."""
        self._work: dict[tuple[str, int, str, str], Work] = {}

    def close(self) -> None:
        """End them all. Safe to call twice; the next use starts fresh ones."""
        self._reference = self._warm = None
        if self._started is not None:
            self._started.close()
            self._started = None

    def recover(self) -> None:
        """After a fault of ours: end all ranks, and the fork server too if it is not well."""
        try:
            for ranks in (self._reference, self._warm):
                if ranks is not None:
                    ranks.kill()
            self._reference = self._warm = None
            if self._started is not None:
                self._started.check()
        except SandboxError:
            self.close()

    @property
    def _nursery(self) -> Nursery:
        if self._started is None:
            _ = self.jail  # first of all: `strict` may not be had
            self._started = Nursery(_passed_on(), lambda: self.allowance.check())
        return self._started

    @functools.cached_property
    def jail(self) -> Jail:
        """What untrusted ranks of this session are confined by: found by trying, once. Raises HarnessError."""
        return jail.find(self.isolation)

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
            isolation=self.jail.layers,
        )

    def inspect(self, entry: Entry, case: Case, dtype: str) -> Work:
        """The problem's work at a case. Raises ProblemError if it cannot run at this world size."""
        key = (entry.suite, entry.number, case.name, dtype)
        if key not in self._work:
            reply = self._nursery.inspect(entry, case, self.world_size, dtype)
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
                given = self._devices
                there = self._not_quarantined(
                    [gpu.index for gpu in machine.gpus() if given is None or gpu.index in given]
                )
                free = free_devices("cuda", there)
                self._lease = Lease("cuda", (free if len(free) >= self.world_size else there)[: self.world_size])
                self._unowned, self._worked = machine.unowned_bytes(self._lease.devices), False
        return self._lease

    def usable(self) -> bool:
        """Whether none of the devices that were given is in quarantine."""
        return self._devices is None or not any(
            entry.kind == "cuda" and entry.device in self._devices for entry in lease.quarantined()
        )

    def _not_quarantined(self, devices: list[int]) -> list[int]:
        """Raises HarnessError if too few are left."""
        out = {entry.device: entry for entry in lease.quarantined() if entry.kind == "cuda" and entry.device in devices}
        left = [device for device in devices if device not in out]
        if len(left) < self.world_size:
            named = "; ".join(f"GPU {device}: {entry.reason}" for device, entry in out.items())
            raise HarnessError(
                f"{len(left)} GPUs can be used, {self.world_size} are needed; in quarantine: {named or 'none'} "
                "(`ringsmith doctor --lift-quarantine`)"
            )
        return left

    def spawn(self, role: str, world_size: int | None = None, locks: Sequence[int] = ()) -> RankSet:
        """New processes in a role (see `harness.rank`), as many as the session has ranks unless given."""
        environment = _passed_on() | {
            "RINGSMITH_CACHE": str(cache.root()),
            "TRITON_CACHE_DIR": str(cache.root() / "triton"),
            "OMP_NUM_THREADS": "1",
            # Of torch.compile: else each rank starts a process per core, which are busy for seconds until they are up.
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            **machine.MULTICAST_SWITCHES,
        }
        if self.platform.name == "cuda":
            environment[cuda.ARCH_VARIABLE] = cuda.architecture()
            if role != "build":
                environment |= cuda.rank_environment(self.lease().devices)
        settings = {"platform": self.platform.name, "environment": environment}
        confined = None if role == "reference" else self.jail
        return self._nursery.spawn(role, world_size or self.world_size, settings, locks, confined)

    # -- ranks that hold devices: brought up ahead of time, waited for when they are needed ----------------------------

    def warm_up(self) -> None:
        """Begin to bring up what the next evaluation needs, unless it is there or somebody else has the devices.
        Returns at once; the new processes hold the lease until they are ready."""
        self._drop_ended()
        if self._reference is None or self._warm is None:
            with contextlib.suppress(BusyError), self.lease().hold(wait_s=0) as locks:
                self.bring_up(locks)

    def bring_up(self, locks: Sequence[int] = ()) -> None:
        """The same under the lease. With its descriptors in `locks` the new processes keep it until they are ready."""
        if self._reference is None:
            self._reference, self._prepared = self._begin("reference", locks), None
        if self._warm is None:
            self._warm = self._begin("candidate", locks)

    def _drop_ended(self) -> None:
        """Ranks that were ended in the middle of a request, because the call's budget was."""
        if self._reference is not None and not self._reference.alive:
            self._reference = None
        if self._warm is not None and not self._warm.alive:
            self._warm = None

    def _begin(self, role: str, locks: Sequence[int] = ()) -> RankSet:
        ranks = self.spawn(role, locks=locks)
        ranks.begin("connect", {"limit_s": math.ceil(self.limits.start_s)})
        return ranks

    def _connected(self, ranks: RankSet) -> Outcome | None:
        """What came of the connecting that `_begin` began; None if that has been heard already."""
        return ranks.wait(self.limits.start_s) if ranks.waiting else None

    def ready(self) -> float:
        """Wait for what is being brought up ahead, so that it has let go of the lease. Returns for how many seconds it
        had it."""
        held_s = [0.0]
        if self._reference is not None and (outcome := self._connected(self._reference)):
            replies = self._came_up(outcome).replies
            held_s += [reply["seconds"] for reply in replies]
        if self._warm is not None and (outcome := self._connected(self._warm)):
            held_s += [reply["seconds"] for reply in outcome.replies]
            if not outcome.ok:
                self._warm.kill()
                self._warm = None
        return max(held_s)

    def reference(self) -> RankSet:
        """The reference ranks, connected; call under the lease. Started if there are none."""
        if self._reference is None:
            self._reference, self._prepared = self._begin("reference"), None
        ranks = self._reference
        if outcome := self._connected(ranks):
            self._came_up(outcome)
        return ranks

    def _came_up(self, outcome: Outcome) -> Outcome:
        """Of the reference ranks. Where earlier ones did and fresh ones do not, the devices are put into quarantine."""
        try:
            self.expect(outcome, "starting the reference ranks")
        except SandboxError as error:
            if self._worked:
                self._quarantine(f"fresh ranks do not come up: {str(error).splitlines()[0]}")
            raise
        self._worked = True
        return outcome

    def _quarantine(self, reason: str) -> None:
        """Nobody is to use this session's devices; its next evaluation chooses others."""
        if self._lease is None or self.platform.name == "cpu":
            return
        lease.quarantine("cuda", self._lease.devices, reason)
        for ranks in (self._reference, self._warm):
            if ranks is not None:
                ranks.kill()
        self._reference = self._warm = self._lease = self._clocks = None

    def candidate(self) -> RankSet:
        """Connected ranks for one candidate, attached to their exchange files; call under the lease. The caller kills
        them. A set that died while it waited is replaced."""
        said = ""
        for _ in range(2):
            ranks, self._warm = self._warm or self._begin("candidate"), None
            outcome = self._connected(ranks)
            if outcome is None or outcome.ok:
                outcome = ranks.ask("attach", {"folder": str(ranks.exchange)}, deadline_s=self.limits.start_s)
            if outcome.ok:
                return ranks
            # Nothing of a candidate has run in them: this is ours.
            logs = [ranks.log(rank) for rank in range(ranks.world_size)]
            _, summary, _ = diagnosis.judge_failure(outcome, Stage.load, logs)
            said = f"{summary}\n{''.join(logs)[-2000:]}"
            ranks.kill()
        raise SandboxError(f"starting the candidate's ranks failed: {said}")

    def dumping_candidate(self, name: str) -> RankSet:
        """Candidate ranks brought up now, which leave a core dump `out/NAME.PID` in their folder if a kernel crashes.
        Those that wait for the next candidate are left alone. The caller kills them. Raises SandboxError."""
        ranks = self.spawn("candidate")
        message = {"limit_s": math.ceil(self.limits.start_s), "dumps": str(ranks.scratch / "out" / f"{name}.%p")}
        for op, asked in (("connect", message), ("attach", {"folder": str(ranks.exchange)})):
            if not ranks.ask(op, asked, deadline_s=self.limits.start_s).ok:
                ranks.kill()
                raise SandboxError("more candidate ranks do not come up")
        return ranks

    def read_clocks(self) -> measure.Reading:
        """Clocks of the leased GPUs now; empty on cpu."""
        if self.platform.name == "cpu":
            return measure.Reading()
        if self._clocks is None:
            self._clocks = Clocks(self.lease().devices)
        return self._clocks.read()

    def busy(self) -> list[bool]:
        """Whether each rank's GPU has been at work in the last moments; empty where nobody can tell."""
        self.read_clocks()
        return self._clocks.busy() if self._clocks is not None else []

    def refill(self, locks: Sequence[int]) -> None:
        """After an evaluation, under its lease: see whether the devices are as they were, and begin to bring up ranks
        for the next candidate. What fails here is the next evaluation's to repair."""
        self._drop_ended()
        message = {"value": 1 + secrets.randbelow(100)}  # not what the last probe left there
        with contextlib.suppress(SandboxError):
            if self._reference is not None and not self._reference.ask("probe", message, deadline_s=_PROBE_S).ok:
                self._reference.kill()
                self._reference = None
                self.reference()  # fresh ones, now: the devices are quarantined if these fail as well
            if kept := self._kept_bytes():
                self._quarantine(f"{kept >> 20} MiB of GPU memory belong to no process")
            elif locks:
                self.bring_up(locks)

    def _kept_bytes(self) -> int:
        """Memory on a leased GPU that nobody has and that was not so before this session, after some patience; else
        0."""
        if self.platform.name == "cpu" or self._lease is None or self._unowned is None:
            return 0
        deadline = time.monotonic() + _MEMORY_S
        while (now := machine.unowned_bytes(self._lease.devices)) is not None:
            kept = max(after - before for after, before in zip(now, self._unowned, strict=True))
            if kept <= _KEPT_BYTES:
                break
            if time.monotonic() > deadline:
                return kept
            time.sleep(0.05)
        return 0

    def prepare(self, entry: Entry, case: Case, dtype: str) -> RankSet:
        """The reference ranks, set up for a problem."""
        ranks = self.reference()
        if self._prepared != (entry.suite, entry.number, case, dtype):
            setup = {
                "problem": entry.number, "suite": entry.suite,
                "case": case.name, "sizes": dict(case.sizes), "dtype": dtype,
            }  # fmt: skip
            self.expect(ranks.ask("setup", setup, deadline_s=60), "loading the problem")
            self._prepared = (entry.suite, entry.number, case, dtype)
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
