"""The harness's one public entry: `Sandbox` builds, checks, times and profiles candidates. Imports no torch.

with Sandbox("cpu", world_size=2) as sandbox:
    evaluation = sandbox.evaluate(Request(...))
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar

from harness import cache, diagnosis, machine, measure, platforms, policy, roofline
from harness.errors import SandboxError, UsageError
from harness.lease import Lease, free_devices
from harness.measure import Block
from harness.platforms import cuda
from harness.progress import Phase
from harness.ranks import Nursery, Outcome, RankSet
from harness.traces import merge_traces
from harness.types import (
    Backend,
    BuildReport,
    Candidate,
    Environment,
    Evaluation,
    Limits,
    Measurement,
    Mismatch,
    PlatformName,
    Profile,
    RankProfile,
    RankReport,
    Request,
    Stage,
    Timing,
    Topology,
    Verdict,
)
from problems import catalogue
from problems.catalogue import Entry
from problems.spec import Case, ProblemError, Work

OnStage = Callable[[Stage], None]
_T = TypeVar("_T")
_SLOTS = 4
"""Distinct input sets that timed calls rotate through."""
_TRACE_ITERATIONS = 5
_COMPILED = ("kit.build", "load_inline", "compile_cuda_extension")
"""Names in a candidate that mean a compiler will run."""


class CandidateFailedError(Exception):
    """What was asked for needs a candidate that works; `evaluation` says how this one failed."""

    def __init__(self, evaluation: Evaluation) -> None:
        super().__init__(evaluation.summary)
        self.evaluation = evaluation


def reference_candidate(entry: Entry) -> Candidate:
    """The reference itself as a candidate: its speed-up is 1 but for noise."""
    return Candidate(source=f"{catalogue.statement(entry)}\n\nsolution = reference\n", backend=Backend.reference)


class Sandbox:
    """The processes of one session: a fork server, long-lived reference ranks, and one set of candidate ranks at a
    time. Not thread-safe. Raises HarnessError when the machine fails, UsageError or ProblemError when the request
    cannot be; a candidate's failure is an Evaluation."""

    def __init__(self, platform: PlatformName, world_size: int, limits: Limits | None = None) -> None:
        self.world_size = world_size
        self.limits = limits or Limits()
        self._platform = platforms.get(platform)
        self._started: Nursery | None = None
        self._reference: RankSet | None = None
        self._prepared: tuple[int, Case, str] | None = None
        """What the reference ranks are set up for."""
        self._lease: Lease | None = None
        self._builds: dict[str, BuildReport] = {}
        self._work: dict[tuple[int, str, str], Work] = {}
        self._topology: Topology | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process of this session. Safe to call twice."""
        if self._reference is not None:
            self._reference.forget()
            self._reference = None
        if self._started is not None:
            self._started.close()
            self._started = None

    # -- what callers ask for ------------------------------------------------------------------------------------------

    def compile(self, candidate: Candidate) -> BuildReport:
        """Policy gate and build stage: no lease, no device."""
        if (found := policy.violation(candidate.source)) is not None:
            return BuildReport(candidate=candidate.hash, verdict=Verdict.policy, summary=found[0])
        if candidate.hash not in self._builds:
            if any(name in candidate.source for name in _COMPILED):
                # Asked here, because a rank that says so cannot be believed: a missing compiler is not its fault.
                self._platform.compile_command(Path("source"), Path("output"), [])
            report = self._build(candidate)
            if report.verdict is Verdict.timeout:
                return report  # may have been the machine's fault: not remembered
            self._builds[candidate.hash] = report
        return self._builds[candidate.hash]

    def evaluate(self, request: Request, on_stage: OnStage | None = None) -> Evaluation:
        """All stages up to timing (or correctness, if `request.timing` is false), stopping at the first failure."""

        def attempt() -> Evaluation:
            run = _Run(self, request, on_stage)
            return run.finish(run.stages)

        return self._with_retry(attempt)

    def profile(self, request: Request, folder: Path) -> tuple[Profile, float]:
        """Per rank where the time of a few calls goes, and the device-seconds that it took; the merged trace is written
        into `folder`.

        Raises CandidateFailedError if the candidate does not get through its correctness trials."""

        def attempt() -> tuple[Profile, float]:
            run = _Run(self, request.model_copy(update={"timing": False, "trials": 1}), None)
            profiles: list[Profile] = []
            evaluation = run.finish(lambda: profiles.append(run.profile(folder)))
            if not profiles:
                raise CandidateFailedError(evaluation)
            return profiles[0], evaluation.device_s

        return self._with_retry(attempt)

    def topology(self) -> Topology:
        """This machine as measured just now (once a session)."""
        if self._topology is None:
            self._platform.check(self.world_size)
            figures: dict[str, float] = {}
            if self.world_size > 1:
                with self.lease().hold():
                    outcome = self.reference().ask("measure", {}, deadline_s=120)
                    replies = self.expect(outcome, "measuring the links").replies
                # The slowest rank's figures: a plan must work on every rank.
                for name in replies[0]["figures"]:
                    pick = min if name.endswith("gbps") else max
                    figures[name] = pick(reply["figures"][name] for reply in replies)
            self._topology = self._platform.topology(figures, self.world_size)
        return self._topology

    def _with_retry(self, attempt: Callable[[], _T]) -> _T:
        """A fault of the sandbox's own processes is not the candidate's: once more, with fresh ones."""
        try:
            return attempt()
        except SandboxError:
            self.close()
            return attempt()

    @property
    def _nursery(self) -> Nursery:
        """The session's processes, started when first needed: a request that cannot be costs none."""
        if self._started is None:
            self._started = Nursery()
        return self._started

    # -- for the stages ------------------------------------------------------------------------------------------------

    def environment(self) -> Environment:
        versions = self._nursery.versions
        gpus = machine.gpus() if self._platform.name == "cuda" else ()
        return Environment(
            platform=self._platform.name,
            devices=self._platform.device_names()[: self.world_size],
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
            if self._platform.name == "cpu":
                # Cores are shared by everything on the machine: one measurement at a time.
                self._lease = Lease("cpu", [0])
            else:
                there = [gpu.index for gpu in machine.gpus()]
                free = free_devices("cuda", there)
                self._lease = Lease("cuda", (free if len(free) >= self.world_size else there)[: self.world_size])
        return self._lease

    def check_machine(self) -> None:
        self._platform.check(self.world_size)

    def spawn(self, role: str, world_size: int | None = None) -> RankSet:
        scratch_free = {"PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_HOME", "PYTHONPATH", "VIRTUAL_ENV"}
        environment = {name: value for name, value in os.environ.items() if name in scratch_free}
        environment |= {
            "RINGSMITH_CACHE": str(cache.root()),
            "TRITON_CACHE_DIR": str(cache.root() / "triton"),
            "OMP_NUM_THREADS": "1",
            **machine.MULTICAST_SWITCHES,
        }
        if self._platform.name == "cuda":
            environment[cuda.ARCH_VARIABLE] = cuda.architecture()
            if role != "build":
                environment |= cuda.rank_environment(self.lease().devices)
        return self._nursery.spawn(
            role, world_size or self.world_size, {"platform": self._platform.name, "environment": environment}
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

    def _build(self, candidate: Candidate) -> BuildReport:
        started = time.monotonic()
        ranks = self.spawn("build", 1)
        try:
            path = write_candidate(ranks.scratch, candidate)
            outcome = ranks.ask("build", {"path": str(path)}, deadline_s=self._load_deadline)
            seconds = time.monotonic() - started
            if outcome.ok:
                reply = outcome.replies[0]
                built = tuple(str(name) for name in reply["built"])
                if reply["failure"] is None:
                    return BuildReport(
                        candidate=candidate.hash, verdict=None, summary="built", built=built, build_s=seconds
                    )
                outcome.ranks[0].error = reply["failure"]
                outcome.ranks[0].reply = None
            elif outcome.ranks[0].exit:
                # The import ended its process. The load stage will see the same where it counts.
                return BuildReport(candidate=candidate.hash, verdict=None, summary="not built ahead", build_s=seconds)
            else:
                built = ()
            verdict, summary, reports = diagnosis.judge_failure(outcome, Stage.build, [ranks.log(0)])
            error = outcome.ranks[0].error
            log = error["message"] if error and "BuildError" in error["bases"] else reports[0].stack
            return BuildReport(
                candidate=candidate.hash,
                verdict=verdict,
                summary=summary.removeprefix("rank 0: "),
                log=log,
                built=built,
                build_s=seconds,
            )
        finally:
            ranks.kill()

    def _load_deadline(self, phase: Phase) -> float:
        return self.limits.build_s if phase is Phase.building else self.limits.load_s

    @property
    def scratch(self) -> Path:
        return self._nursery.scratch

    @property
    def platform_name(self) -> PlatformName:
        return self._platform.name


def write_candidate(folder: Path, candidate: Candidate) -> Path:
    """`candidate.py` in a folder of its own: its name in every stack and compiler message."""
    path = folder / "candidate.py"
    path.write_text(candidate.source)
    return path


def _times(reply: dict[str, Any], iterations: int) -> list[float]:
    """The times that a candidate's rank claims. Raises _FailedError unless it is a positive number for every call."""
    times = reply.get("times_us")
    if (
        not isinstance(times, list)
        or len(times) != iterations
        or not all(isinstance(t, (int, float)) and math.isfinite(t) and t > 0 for t in times)
    ):
        raise _FailedError(Verdict.integrity, "a rank reported times that are none")
    return [float(t) for t in times]


class _FailedError(Exception):
    """The candidate failed: leave the stages."""

    def __init__(self, verdict: Verdict, summary: str, ranks: tuple[RankReport, ...] = (), log: str = "") -> None:
        super().__init__(summary)
        self.verdict, self.summary, self.ranks, self.log = verdict, summary, ranks, log


class _Run:
    """One evaluation from the first stage to its Evaluation."""

    def __init__(self, sandbox: Sandbox, request: Request, on_stage: OnStage | None) -> None:
        if request.platform != sandbox.platform_name or request.world_size != sandbox.world_size:
            raise UsageError(
                f"this sandbox has {sandbox.world_size} ranks on {sandbox.platform_name}; "
                f"the request wants {request.world_size} on {request.platform}"
            )
        self._box, self._request, self._on_stage = sandbox, request, on_stage
        self._limits = request.limits
        self._entry = catalogue.find(request.problem)
        self._case = catalogue.select_case(self._entry, request.case)
        self._stage = Stage.policy
        self._stage_s: dict[str, float] = {}
        self._spent_on = "start"
        self._since = time.monotonic()
        self._device_s = 0.0
        self._measurement: Measurement | None = None
        self._candidate: RankSet | None = None

    def finish(self, body: Callable[[], None]) -> Evaluation:
        """Run `body` over the stages and say what came of it."""
        self._box.check_machine()
        work = self._box.inspect(self._entry, self._case, self._request.dtype)
        failure: _FailedError | None = None
        try:
            self._gate_and_build()
            self._work = work
            body()
        except _FailedError as failed:
            failure = failed
        self._enter(self._stage)
        request = self._request
        return Evaluation(
            candidate=request.candidate.hash,
            backend=request.candidate.backend,
            problem=self._entry.number,
            name=self._entry.name,
            case=self._case.name,
            sizes=dict(self._case.sizes),
            world_size=request.world_size,
            dtype=request.dtype,
            check=request.check,
            trials=request.trials,
            verdict=failure.verdict if failure else Verdict.passed,
            stage=self._stage,
            summary=failure.summary if failure else self._success(),
            ranks=failure.ranks if failure else (),
            measurement=None if failure else self._measurement,
            log=failure.log if failure else "",
            stage_s={name: round(seconds, 4) for name, seconds in self._stage_s.items()},
            device_s=self._device_s,
            environment=self._box.environment(),
        )

    def stages(self) -> None:
        """load -> correctness -> timing -> recheck, under the lease."""
        with self._ranks() as (reference, candidate):
            self._load(candidate)
            self._correctness(reference, candidate)
            if self._request.timing:
                self._enter(Stage.timing)
                self._measurement = self._time(reference, candidate)

    def profile(self, folder: Path) -> Profile:
        """load -> correctness -> profiled calls."""
        with self._ranks() as (reference, candidate):
            self._load(candidate)
            self._correctness(reference, candidate)
            parts = [candidate.scratch / f"trace.{rank}.json" for rank in range(candidate.world_size)]
            message = {"iterations": _TRACE_ITERATIONS, "folder": str(candidate.scratch)}
            replies = self._ask("profile", message, Stage.timing, self._limits.first_call_s).replies
            folder.mkdir(parents=True, exist_ok=True)
            trace = folder / f"{self._request.candidate.hash}-{secrets.token_hex(3)}.trace.json"
            try:
                merge_traces(parts, trace)
                ranks = tuple(
                    RankProfile(rank=rank, iteration_us=reply["iteration_us"], top=reply["top"])
                    for rank, reply in enumerate(replies)
                )
            except (OSError, ValueError, KeyError, TypeError, AttributeError):  # the ranks wrote all of this
                raise _FailedError(Verdict.integrity, "a rank reported a profile that is none") from None
            return Profile(
                candidate=self._request.candidate.hash, iterations=_TRACE_ITERATIONS, ranks=ranks, trace=str(trace)
            )

    # -- stages --------------------------------------------------------------------------------------------------------

    def _gate_and_build(self) -> None:
        self._enter(Stage.build)
        report = self._box.compile(self._request.candidate)
        if report.verdict is Verdict.policy:
            self._stage = Stage.policy
        if report.verdict is not None:
            raise _FailedError(report.verdict, report.summary, log=report.log)

    @contextlib.contextmanager
    def _ranks(self) -> Iterator[tuple[RankSet, RankSet]]:
        """Reference and candidate ranks, connected, under the lease. The candidate's are gone afterwards."""
        self._enter(Stage.load)
        box = self._box
        with self._leased():
            reference = box.prepare(self._entry, self._case, self._request.dtype)
            self._exchange = box.scratch / f"exchange-{secrets.token_hex(4)}"
            self._exchange.mkdir(mode=0o700)
            self._candidate = candidate = box.spawn("candidate")
            try:
                for ranks, op, message in (
                    (candidate, "connect", {}),
                    (candidate, "attach", {"folder": str(self._exchange)}),
                    (reference, "attach", {"folder": str(self._exchange)}),
                ):
                    outcome = ranks.ask(op, message, deadline_s=self._limits.start_s)
                    if not outcome.ok:
                        # Nothing of the candidate has run yet: this is ours.
                        logs = [ranks.log(rank) for rank in range(ranks.world_size)]
                        _, summary, _ = diagnosis.judge_failure(outcome, Stage.load, logs)
                        raise SandboxError(f"{op} of {ranks.name} failed: {summary}\n{''.join(logs)[-2000:]}")
                yield reference, candidate
            finally:
                candidate.kill()
                shutil.rmtree(self._exchange, ignore_errors=True)
                self._check_devices(candidate.pids)

    @contextlib.contextmanager
    def _leased(self) -> Iterator[None]:
        """The session's devices; the time they were held is charged however the block ends."""
        lease = self._box.lease()
        held = lease.held_s
        try:
            with lease.hold():
                yield
        finally:
            self._device_s += (lease.held_s - held) * len(lease.devices)

    def _load(self, candidate: RankSet) -> None:
        path = write_candidate(candidate.scratch, self._request.candidate)
        deadline = lambda phase: self._limits.build_s if phase is Phase.building else self._limits.load_s  # noqa: E731
        self._ask("load", {"path": str(path)}, Stage.load, deadline)

    def _correctness(self, reference: RankSet, candidate: RankSet) -> None:
        self._enter(Stage.correctness)
        for trial in range(self._request.trials):
            self._give_inputs(reference, slot=0)
            limit = self._limits.first_call_s if trial == 0 else self._limits.call_s
            replies = self._ask("call", {"slot": 0}, Stage.correctness, self._call_deadline(limit)).replies
            self._judge(reference, replies, slot=0, trial=trial, verdict=Verdict.wrong_values)

    def _give_inputs(self, reference: RankSet, slot: int) -> int:
        """Fresh secret inputs in `slot` of both sides; returns the bytes of one rank's."""
        message = {"slot": slot, "seed": secrets.randbits(62)}
        drawn = self._box.expect(reference.ask("inputs", message, deadline_s=120), "computing the reference").replies
        self._ask(
            "inputs", [{"slot": slot, "tree": reply["tree"]} for reply in drawn], self._stage, self._limits.first_call_s
        )
        return (self._exchange / "inputs.0").stat().st_size

    def _judge(
        self,
        reference: RankSet,
        replies: list[dict[str, Any]],
        *,
        slot: int,
        trial: int,
        verdict: Verdict,
        note: str = "",
    ) -> None:
        """Compare every rank's output; a wrong one fails with `verdict`."""
        common = {"slot": slot, "trial": trial, "check": self._request.check}
        messages = [{**common, "tree": reply.get("tree")} for reply in replies]
        judged = self._box.expect(reference.ask("check", messages, deadline_s=120), "checking outputs").replies
        structure = [reply["structure"] for reply in judged]
        found = [[Mismatch.model_validate(m) for m in reply["mismatches"]] for reply in judged]
        if not any(structure) and not any(found):
            return
        reports = tuple(
            RankReport(
                rank=rank,
                ok=not error and not mismatches,
                stage=self._stage,
                calls_completed=trial + 1,
                message=error or ("wrong values" if mismatches else ""),
                mismatches=tuple(mismatches),
            )
            for rank, (error, mismatches) in enumerate(zip(structure, found, strict=True))
        )
        if any(structure):
            rank = next(r for r, error in enumerate(structure) if error)
            raise _FailedError(Verdict.shape_error, f"rank {rank}: {structure[rank]}", reports)
        raise _FailedError(verdict, diagnosis.judge_mismatches(found) + note, reports)

    def _time(self, reference: RankSet, candidate: RankSet) -> Measurement:
        size = self._give_inputs(reference, slot=0)
        slots = _SLOTS if size < (256 << 20) else 2
        for slot in range(1, slots):
            self._give_inputs(reference, slot)

        def recheck(iterations: int, mode: str) -> None:
            replies = self._ask("last", {}, Stage.timing, self._limits.call_s).replies
            self._judge(
                reference,
                replies,
                slot=(iterations - 1) % slots,
                trial=self._request.trials,
                verdict=Verdict.race,
                note=f" (output of the last of {iterations} back-to-back calls, {mode}; single calls were right)",
            )

        def on_candidate(mode: str) -> measure.TimeBlock:
            def run(iterations: int, expected_us: float) -> Block:
                limit = self._limits.call_s + 10 * iterations * expected_us / 1e6
                message = {"mode": mode, "iterations": iterations}
                replies = self._ask("time", message, Stage.timing, self._call_deadline(limit)).replies
                refused = [reply["not_capturable"] for reply in replies if "not_capturable" in reply]
                if refused:
                    raise platforms.NotCapturableError(str(refused[0]))
                return Block([_times(reply, iterations) for reply in replies])

            return run

        def on_reference(mode: str) -> measure.TimeBlock:
            def run(iterations: int, expected_us: float) -> Block:
                message = {"mode": mode, "iterations": iterations}
                outcome = self._box.expect(reference.ask("time", message, deadline_s=120), "timing the reference")
                return Block([reply["times_us"] for reply in outcome.replies])

            return run

        if self._request.protocol == "pkb":
            eager = measure.pkb(on_reference("steady"), on_candidate("steady"))
            recheck(measure.PKB_ITERATIONS, "eager")
            return self._measurement_of(eager, None, "the pkb protocol has no device-only figure")
        eager = measure.alternate(on_reference("eager"), on_candidate("eager"))
        recheck(eager.candidate.samples // measure.BLOCKS, "eager")
        try:
            # The candidate first: if it cannot be captured, the reference is not timed in vain.
            on_candidate("device")(1, eager.candidate.median_us)
            device = measure.alternate(on_reference("device"), on_candidate("device"))
        except platforms.NotCapturableError as reason:
            return self._measurement_of(eager, None, str(reason))
        recheck(platforms.GRAPH_CALLS, "CUDA graph")
        return self._measurement_of(eager, device, "")

    def _measurement_of(self, eager: Timing, device: Timing | None, note: str) -> Measurement:
        names = self._box.environment().devices
        bound = roofline.floor(self._work, names[0] if names else "", self._request.dtype)
        return Measurement(
            protocol=self._request.protocol,
            eager=eager,
            device=device,
            device_note=note,
            sol_us=bound[0] if bound else None,
            bound_by=bound[1] if bound else "",
        )

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _ask(
        self,
        op: str,
        message: dict[str, Any] | list[dict[str, Any]],
        stage: Stage,
        deadline_s: float | Callable[[Phase], float],
    ) -> Outcome:
        """Ask the candidate's ranks; their failure is the candidate's."""
        assert self._candidate is not None
        outcome = self._candidate.ask(op, message, deadline_s=deadline_s)
        if not outcome.ok:
            logs = [self._candidate.log(rank) for rank in range(self._candidate.world_size)]
            verdict, summary, reports = diagnosis.judge_failure(outcome, stage, logs)
            if stage is Stage.timing and verdict in (Verdict.deadlock, Verdict.timeout):
                summary += " (in back-to-back calls; single calls were right)"
            errors = [r.error["message"] for r in outcome.ranks if r.error and "BuildError" in r.error["bases"]]
            raise _FailedError(verdict, summary, reports, log=errors[0] if errors else "")
        return outcome

    def _call_deadline(self, limit_s: float) -> Callable[[Phase], float]:
        # A candidate may compile on its first call; that is the build's time.
        return lambda phase: self._limits.build_s if phase is Phase.building else limit_s

    def _enter(self, stage: Stage) -> None:
        now = time.monotonic()
        self._stage_s[self._spent_on] = self._stage_s.get(self._spent_on, 0.0) + now - self._since
        self._since, self._spent_on = now, str(stage)
        if stage is not self._stage:
            self._stage = stage
            if self._on_stage is not None:
                self._on_stage(stage)

    def _success(self) -> str:
        trials = f"correct in {self._request.trials} of {self._request.trials} trials on all ranks"
        if self._measurement is None:
            return trials
        ratio = (self._measurement.device or self._measurement.eager).speedup
        return f"{trials}, {ratio.value:.2f}x the reference [{ratio.low:.2f}, {ratio.high:.2f}]"

    def _check_devices(self, pids: list[int]) -> None:
        """The candidate must have left the GPUs before the lease goes on."""
        if self._box.platform_name == "cuda" and (left := cuda.wait_gone(pids)):
            raise SandboxError(f"killed processes {left} still hold GPU memory")
