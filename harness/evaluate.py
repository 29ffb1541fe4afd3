"""The harness's one public entry: `Sandbox` builds, checks, times and profiles candidates. Imports no torch.

with Sandbox("cpu", world_size=2) as sandbox:
    evaluation = sandbox.evaluate(Request(...))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, Self, TypeVar

from harness import baseline, calibration
from harness.allowance import Allowance
from harness.baseline import Baseline
from harness.build import Builds
from harness.calibration import Calibration
from harness.errors import BudgetEndedError, BusyError, SandboxError, UsageError
from harness.processes import Processes
from harness.profile_types import Profile
from harness.stages import OnStage, Run
from harness.types import (
    Backend,
    BuildReport,
    Candidate,
    DType,
    Environment,
    Evaluation,
    IsolationLevel,
    Limits,
    PlatformName,
    Request,
    Topology,
)
from problems import catalogue
from problems.catalogue import Entry
from problems.spec import Case, Work

_T = TypeVar("_T")


class CandidateFailedError(Exception):
    """What was asked for needs a candidate that works; `evaluation` says how this one failed."""

    def __init__(self, evaluation: Evaluation) -> None:
        super().__init__(evaluation.summary)
        self.evaluation = evaluation


def reference_candidate(entry: Entry) -> Candidate:
    """The reference itself as a candidate: its speed-up is 1 but for noise."""
    named = "" if entry.function == "solution" else f"\n\nsolution = {entry.function}\n"
    return Candidate(source=f"{catalogue.statement(entry)}{named}", backend=Backend.reference)


class Evaluator(Protocol):
    """What a run asks of the harness; answered by a `Sandbox`, or by many that share devices (`pool.Pool`)."""

    platform_name: PlatformName
    world_size: int
    limits: Limits

    def inspect(self, entry: Entry, case: Case, dtype: str) -> Work: ...

    def topology(self) -> Topology: ...

    def warm_up(self) -> None: ...

    def compile(self, candidate: Candidate, *, allowance: Allowance | None = None) -> BuildReport: ...

    def evaluate(
        self,
        request: Request,
        on_stage: OnStage | None = None,
        *,
        last: bool = False,
        allowance: Allowance | None = None,
    ) -> Evaluation: ...

    def profile(
        self, request: Request, folder: Path, kernel: str = "", *, allowance: Allowance | None = None
    ) -> tuple[Profile, float]: ...


class Sandbox:
    """The processes of one session and what can be asked of them. Not thread-safe. Every call raises HarnessError when
    the machine fails, and UsageError or ProblemError when the request cannot be; a candidate's failure is an
    Evaluation.

    A call with an `allowance` counts there what it uses, and raises BudgetEndedError when that is over; the next call
    finds the sandbox as usable as before."""

    def __init__(
        self,
        platform: PlatformName,
        world_size: int,
        limits: Limits | None = None,
        isolation: IsolationLevel = "auto",
        devices: Sequence[int] | None = None,
    ) -> None:
        """`isolation` is how candidates are confined; with `strict` the first use raises HarnessError if any layer
        cannot be had here. `devices` are the GPUs to lease, one a rank; None: those that are free at the first use."""
        self.platform_name, self.world_size = platform, world_size
        self.limits = limits or Limits()
        self._processes = Processes(platform, world_size, self.limits, isolation, devices)
        self._builds = Builds(self._processes)
        self._topology: Topology | None = None
        self._fault = ""
        """What ended the first attempt at the last thing asked."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process of this session. Safe to call twice."""
        self._processes.close()

    def compile(self, candidate: Candidate, *, allowance: Allowance | None = None) -> BuildReport:
        """Policy gate and build stage: no lease, no device."""
        return self._with_retry(lambda: self._builds.build(candidate), allowance)

    def know(self, report: BuildReport) -> None:
        """What another sandbox of this machine has found out about a candidate: it is not built again."""
        self._builds.know(report)

    def usable(self) -> bool:
        """Whether none of the devices that it was given is in quarantine."""
        return self._processes.usable()

    def warm_up(self) -> None:
        """Begin to bring up what the first evaluation needs. Returns as soon as the fork server is there."""
        self._with_retry(self._processes.warm_up)

    def build_ahead(self, candidates: Sequence[Candidate]) -> None:
        """Begin to build candidates that will be evaluated, where that disturbs no timing."""
        self._builds.ahead(candidates)

    def evaluate(
        self,
        request: Request,
        on_stage: OnStage | None = None,
        *,
        last: bool = False,
        allowance: Allowance | None = None,
    ) -> Evaluation:
        """All stages up to timing (or correctness, if `request.timing` is false), stopping at the first failure.

        Afterwards ranks for another candidate come up in the background, unless this is the `last` one."""

        suspected = False

        def attempt() -> Evaluation:
            nonlocal suspected
            run = self._run(request, on_stage, refill=not last, suspected=suspected)
            try:
                return run.finish(run.stages)
            except BusyError as busy:
                suspected = busy.gone_with_candidate
                raise

        evaluation = self._with_retry(attempt, allowance)
        return evaluation.model_copy(update={"fault": self._fault})

    def profile(
        self, request: Request, folder: Path, kernel: str = "", *, allowance: Allowance | None = None
    ) -> tuple[Profile, float]:
        """Where the time of a few calls goes, and the device-seconds that it took; the merged trace is written into
        `folder`. With `kernel`, part of a kernel's name, that one's hardware counters as well.

        Raises CandidateFailedError if the candidate does not get through a correctness trial."""

        def attempt() -> tuple[Profile, float]:
            run = self._run(request.model_copy(update={"timing": False, "trials": 1}), None, refill=True)
            profiles: list[Profile] = []
            evaluation = run.finish(lambda: profiles.append(run.profile(folder, kernel)))
            if not profiles:
                raise CandidateFailedError(evaluation)
            return profiles[0], evaluation.device_s

        return self._with_retry(attempt, allowance)

    def topology(self) -> Topology:
        """This machine as measured just now (once a session)."""
        if self._topology is None:
            self._processes.platform.check(self.world_size)
            figures = self._with_retry(self._measure) if self.world_size > 1 else {}
            self._topology = self._processes.platform.topology(figures, self.world_size)
        return self._topology

    def calibrate(self) -> Calibration:
        """This machine's peaks as measured just now; `calibration.save` keeps them for later measurements."""
        return self._with_retry(lambda: calibration.measure(self._processes))

    def inspect(self, entry: Entry, case: Case, dtype: str) -> Work:
        """The problem's work at a case. Raises ProblemError if it cannot run at this world size."""
        return self._with_retry(lambda: self._processes.inspect(entry, case, dtype))

    def environment(self) -> Environment:
        """What every Evaluation of this session says about where it ran."""
        return self._with_retry(self._processes.environment)

    def baseline(self, entry: Entry, case: Case, dtype: DType) -> Baseline:
        """The problem's reference by itself: no candidate is needed."""
        return self._with_retry(lambda: baseline.time_reference(self._processes, entry, case, dtype))

    def _run(self, request: Request, on_stage: OnStage | None, refill: bool, suspected: bool = False) -> Run:
        if request.platform != self.platform_name or request.world_size != self.world_size:
            raise UsageError(
                f"this sandbox has {self.world_size} ranks on {self.platform_name}; "
                f"the request wants {request.world_size} on {request.platform}"
            )
        return Run(self._processes, self._builds, request, on_stage, refill, suspected)

    def _measure(self) -> dict[str, float]:
        processes = self._processes
        with processes.lease().hold():
            outcome = processes.reference().ask("measure", {}, deadline_s=120)
            replies = processes.expect(outcome, "measuring the links").replies
        # The slowest rank's figures: a plan must work on every rank.
        return {
            name: (min if name.endswith("gbps") else max)(reply["figures"][name] for reply in replies)
            for name in replies[0]["figures"]
        }

    def _with_retry(self, attempt: Callable[[], _T], allowance: Allowance | None = None) -> _T:
        """A fault of the sandbox's own processes is not the candidate's: once more, with fresh ones."""
        allowance = self._processes.allowance = allowance or Allowance()
        self._fault = ""
        try:
            return attempt()
        except SandboxError as error:
            self._fault = str(error)[:2000]
            self._processes.recover()
            if allowance.ended is not None:  # it was the cleaning up that failed
                raise BudgetEndedError(allowance.ended) from None
            return attempt()
        finally:
            self._processes.allowance = Allowance()
