"""One evaluation: load, correctness, timing of one candidate, and the Evaluation that comes of it. Imports no torch."""

from __future__ import annotations

import contextlib
import itertools
import math
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from harness import calibration, diagnosis, measure, platforms, roofline
from harness.build import Builds, load_deadline, write_candidate
from harness.errors import HarnessError, SandboxError
from harness.measure import Block
from harness.platforms import Plan, cuda
from harness.processes import Processes
from harness.progress import Phase
from harness.ranks import Outcome, RankSet
from harness.traces import merge_traces
from harness.types import (
    Evaluation,
    Measurement,
    Mismatch,
    Profile,
    RankProfile,
    RankReport,
    Request,
    Stage,
    Timing,
    Verdict,
)
from problems import catalogue

OnStage = Callable[[Stage], None]
_SLOTS, _FEW_SLOTS = 4, 2
"""Distinct input sets that timed calls rotate through; fewer where they are larger than any cache."""
_LARGE_BYTES = 64 << 20
_TRACE_ITERATIONS = 5
_PROFILER_S = 30.0
"""For starting and writing the trace: torch's profiler imports its compiler, seconds on a busy machine."""


class FailedError(Exception):
    """The candidate failed: leave the stages."""

    def __init__(self, verdict: Verdict, summary: str, ranks: tuple[RankReport, ...] = (), log: str = "") -> None:
        super().__init__(summary)
        self.verdict, self.summary, self.ranks, self.log = verdict, summary, ranks, log


class Run:
    """One evaluation from the first stage to its Evaluation."""

    def __init__(
        self, processes: Processes, builds: Builds, request: Request, on_stage: OnStage | None, refill: bool
    ) -> None:
        self._box, self._builds, self._request, self._on_stage = processes, builds, request, on_stage
        self._refill = refill
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
        self._box.platform.check(self._box.world_size)
        work = self._box.inspect(self._entry, self._case, self._request.dtype)
        self._box.warm_up()
        failure: FailedError | None = None
        try:
            self._gate_and_build()
            self._work = work
            body()
        except FailedError as failed:
            failure = failed
        self._account("")
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
        """load -> correctness -> timing, under the lease."""
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
            parts = [candidate.scratch / "out" / f"trace.{rank}.json" for rank in range(candidate.world_size)]
            message = {"iterations": _TRACE_ITERATIONS, "folder": str(candidate.scratch / "out")}
            limit = self._limits.first_call_s + _PROFILER_S
            replies = self._ask("profile", message, Stage.timing, limit).replies
            try:
                merged = merge_traces(parts)
                ranks = tuple(
                    RankProfile(rank=rank, iteration_us=reply["iteration_us"], top=reply["top"])
                    for rank, reply in enumerate(replies)
                )
            except (OSError, ValueError, KeyError, TypeError, AttributeError):  # the ranks wrote all of this
                raise FailedError(Verdict.integrity, "a rank reported a profile that is none") from None
            trace = folder / f"{self._request.candidate.hash}-{secrets.token_hex(3)}.trace.json"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                trace.write_text(merged, encoding="utf-8")
            except OSError as error:
                raise HarnessError(f"cannot write {trace}: {error.strerror}") from None
            return Profile(
                candidate=self._request.candidate.hash, iterations=_TRACE_ITERATIONS, ranks=ranks, trace=str(trace)
            )

    # -- stages --------------------------------------------------------------------------------------------------------

    def _gate_and_build(self) -> None:
        self._enter(Stage.build)
        report = self._builds.build(self._request.candidate)
        if report.verdict is Verdict.policy:
            self._stage = Stage.policy
        if report.verdict is not None:
            raise FailedError(report.verdict, report.summary, log=report.log)

    @contextlib.contextmanager
    def _ranks(self) -> Iterator[tuple[RankSet, RankSet]]:
        """Reference and candidate ranks, connected, under the lease. The candidate's are gone afterwards, and those of
        the next are on their way."""
        self._enter(Stage.load)
        box = self._box
        self._device_s += box.ready() * box.world_size
        with self._leased() as locks:
            box.bring_up()
            reference = box.prepare(self._entry, self._case, self._request.dtype)
            self._candidate = candidate = box.candidate()
            self._exchange = candidate.exchange
            try:
                attached = reference.ask("attach", {"folder": str(self._exchange)}, deadline_s=self._limits.start_s)
                box.expect(attached, "attaching the reference ranks")
                yield reference, candidate
            finally:
                self._account("cleanup")
                candidate.kill()
                self._check_devices(candidate.pids)
                box.refill(locks if self._refill else ())

    @contextlib.contextmanager
    def _leased(self) -> Iterator[tuple[int, ...]]:
        """The session's devices; the time they were held is charged however the block ends."""
        lease = self._box.lease()
        held = lease.held_s
        try:
            with lease.hold() as locks:
                yield locks
        finally:
            self._device_s += (lease.held_s - held) * len(lease.devices)

    def _load(self, candidate: RankSet) -> None:
        path = write_candidate(candidate.scratch, self._request.candidate)
        self._ask("load", {"path": str(path)}, Stage.load, load_deadline(self._limits))

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
            raise FailedError(Verdict.shape_error, f"rank {rank}: {structure[rank]}", reports)
        raise FailedError(verdict, diagnosis.judge_mismatches(found) + note, reports)

    def _time(self, reference: RankSet, candidate: RankSet) -> Measurement:
        size = self._give_inputs(reference, slot=0)
        slots = _SLOTS if size < _LARGE_BYTES else _FEW_SLOTS
        for slot in range(1, slots):
            self._give_inputs(reference, slot)
        # As many as a sample has calls, so that each finds its inputs in memory and not in a cache.
        copies = math.ceil(measure.MAX_CALLS / slots) if size < _LARGE_BYTES else 1
        rotated = self._box.expect(reference.ask("rotate", {"copies": copies}, deadline_s=60), "copying inputs").replies
        self._ask("rotate", {"copies": copies}, Stage.timing, self._limits.first_call_s)
        sides = _Sides(self, reference, candidate, rotated[0]["communicators"])

        def recheck(calls: int, mode: str) -> None:
            replies = self._ask("last", {}, Stage.timing, self._limits.call_s).replies
            self._judge(
                reference,
                replies,
                slot=(calls - 1) % slots,
                trial=self._request.trials,
                verdict=Verdict.race,
                note=f" (output of the last of {calls} back-to-back calls, {mode}; single calls were right)",
            )

        if self._request.protocol == "pkb":
            eager = measure.pkb(sides.reference("steady"), sides.candidate("steady"))
            recheck(measure.PKB_ITERATIONS, "eager")
            return self._measurement_of(eager, None, "the pkb protocol has no device-only figure")
        noise = self._box.platform.noise
        eager = measure.alternate(sides.reference("eager"), sides.candidate("eager"), noise)
        recheck(sides.last_calls, "eager")
        try:
            # The candidate first: if it cannot be captured, the reference is not timed in vain.
            sides.candidate("device")(Plan(1, eager.calls, expected_us=eager.candidate.median_us))
            device = measure.alternate(sides.reference("device"), sides.candidate("device"), noise, eager.calls)
        except platforms.NotCapturableError as reason:
            return self._measurement_of(eager, None, str(reason))
        recheck(eager.calls, "CUDA graph")
        return self._measurement_of(eager, device, "")

    def time_reference(self, ranks: RankSet, mode: str, plan: Plan) -> Block:
        """One block of the reference's."""
        ranks.begin("time", {"mode": mode, "plan": asdict(plan)})
        reading = self._box.read_clocks()
        replies = self._box.expect(ranks.wait(120), "timing the reference").replies
        return Block([reply["times_us"] for reply in replies], [reply["host_us"] for reply in replies], reading)

    def time_candidate(self, mode: str, plan: Plan) -> Block:
        """One block of the candidate's. Raises NotCapturableError."""
        sample_s = (plan.prime_us + 10 * plan.calls * plan.expected_us) / 1e6
        limit = self._call_deadline(self._limits.call_s + plan.samples * sample_s)
        reading = measure.Reading()

        def look() -> None:
            nonlocal reading
            reading = self._box.read_clocks()

        message = {"mode": mode, "plan": asdict(plan)}
        replies = self._ask("time", message, Stage.timing, limit, meanwhile=look).replies
        refused = [reply["not_capturable"] for reply in replies if "not_capturable" in reply]
        if refused:
            raise platforms.NotCapturableError(str(refused[0]))
        # What the host needed is a remark, not a result: a rank that reports nonsense there loses only the remark.
        host = [_numbers(reply.get("host_us"), plan.samples) or [] for reply in replies]
        return Block([_times(reply, plan.samples) for reply in replies], host, reading)

    def _measurement_of(self, eager: Timing, device: Timing | None, note: str) -> Measurement:
        platform, request = self._box.platform, self._request
        names = platform.device_names()
        stored = calibration.load(platform.name, names)
        peaks = stored.peaks(request.world_size) if stored else None
        floors = roofline.floors(self._work, names[0], request.dtype, request.world_size, peaks)
        return Measurement(
            protocol=request.protocol,
            eager=eager,
            device=device,
            device_note=note,
            sol_us=floors.sol_us,
            bound_by=floors.bound_by,
            sol_from=floors.sol_from,
            achievable_us=floors.achievable_us,
            achievable_bound_by=floors.achievable_bound_by,
        )

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _ask(
        self,
        op: str,
        message: dict[str, Any] | list[dict[str, Any]],
        stage: Stage,
        deadline_s: float | Callable[[Phase], float],
        meanwhile: Callable[[], None] = lambda: None,
    ) -> Outcome:
        """Ask the candidate's ranks; their failure is the candidate's."""
        assert self._candidate is not None
        self._candidate.begin(op, message)
        meanwhile()
        outcome = self._candidate.wait(deadline_s)
        if not outcome.ok:
            logs = [self._candidate.log(rank) for rank in range(self._candidate.world_size)]
            verdict, summary, reports = diagnosis.judge_failure(outcome, stage, logs)
            if stage is Stage.timing and verdict in (Verdict.deadlock, Verdict.timeout):
                summary += " (in back-to-back calls; single calls were right)"
            errors = [r.error["message"] for r in outcome.ranks if r.error and "BuildError" in r.error["bases"]]
            raise FailedError(verdict, summary, reports, log=errors[0] if errors else "")
        return outcome

    def _call_deadline(self, limit_s: float) -> Callable[[Phase], float]:
        # A candidate may compile on its first call; that is the build's time.
        return lambda phase: self._limits.build_s if phase is Phase.building else limit_s

    def _enter(self, stage: Stage) -> None:
        self._account(str(stage))
        if stage is not self._stage:
            self._stage = stage
            if self._on_stage is not None:
                self._on_stage(stage)

    def _account(self, name: str) -> None:
        """From now on time is spent on `name`."""
        now = time.monotonic()
        self._stage_s[self._spent_on] = self._stage_s.get(self._spent_on, 0.0) + now - self._since
        self._since, self._spent_on = now, name

    def _success(self) -> str:
        trials = f"correct in {self._request.trials} of {self._request.trials} trials on all ranks"
        if self._measurement is None:
            return trials
        ratio = (self._measurement.device or self._measurement.eager).speedup
        return f"{trials}, {ratio.value:.2f}x the reference [{ratio.low:.2f}, {ratio.high:.2f}]"

    def _check_devices(self, pids: list[int]) -> None:
        """The candidate must have left the GPUs before the lease goes on."""
        if self._box.platform.name == "cuda" and (left := cuda.wait_gone(pids)):
            raise SandboxError(f"killed processes {left} still hold GPU memory")


class _Sides:
    """The two sides of a measurement as `measure` wants them."""

    def __init__(self, run: Run, reference: RankSet, candidate: RankSet, communicators: int) -> None:
        self._run, self._reference, self._candidate = run, reference, candidate
        self._next_communicator = itertools.cycle(range(communicators))
        self.last_calls = 0
        """Calls in the candidate's last block."""

    def reference(self, mode: str) -> measure.TimeBlock:
        def time_block(plan: Plan) -> Block:
            plan = replace(plan, communicator=next(self._next_communicator))
            return self._run.time_reference(self._reference, mode, plan)

        return time_block

    def candidate(self, mode: str) -> measure.TimeBlock:
        def time_block(plan: Plan) -> Block:
            self.last_calls = plan.samples * plan.calls
            return self._run.time_candidate(mode, plan)

        return time_block


def _times(reply: dict[str, Any], samples: int) -> list[float]:
    """The times that a candidate's rank claims. Raises FailedError unless it is a positive number for every sample."""
    times = _numbers(reply.get("times_us"), samples)
    if times is None:
        raise FailedError(Verdict.integrity, "a rank reported times that are none")
    return times


def _numbers(values: Any, count: int) -> list[float] | None:
    """`count` positive finite numbers, or None."""
    good = (
        isinstance(values, list)
        and len(values) == count
        and all(isinstance(v, (int, float)) and math.isfinite(v) and v > 0 for v in values)
    )
    return [float(v) for v in values] if good else None
