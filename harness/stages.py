"""One evaluation: load, correctness, timing of one candidate, and the Evaluation that comes of it. Imports no torch."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness import (
    calibration,
    causes,
    counters,
    crash,
    measure,
    platforms,
    policy,
    probing,
    roofline,
    slots,
    store,
    stress,
    unwaited,
)
from harness.build import Builds, load_deadline, write_candidate
from harness.errors import BudgetEndedError, BusyError, SandboxError
from harness.measure import Alternation
from harness.mechanisms import mechanisms
from harness.pair import FailedError, Other, Pair
from harness.platforms import Plan, cuda
from harness.processes import Processes
from harness.profile_types import Profile
from harness.profiler import Profiler
from harness.timing import Timed, undisturbed
from harness.types import Evaluation, Finding, Measurement, Mechanism, Request, Stage, Timing, Verdict
from harness.wording import figure, interval
from problems import catalogue

OnStage = Callable[[Stage], None]

_MOST_BY_REPETITION = 3.0
"""How many times faster calls may be whose inputs nobody changes: warm caches, and no barrier before them."""


class Run:
    """One evaluation from the first stage to its Evaluation."""

    def __init__(
        self,
        processes: Processes,
        builds: Builds,
        request: Request,
        on_stage: OnStage | None,
        refill: bool,
        suspected: bool = False,
    ) -> None:
        """`suspected`: a former attempt found the machine busy only while the candidate was there."""
        self._suspected = suspected
        self._box, self._builds, self._request, self._on_stage = processes, builds, request, on_stage
        self._refill = refill
        self._limits = request.limits
        self._entry = catalogue.find(request.problem, request.suite)
        self._case = catalogue.select_case(self._entry, request.case or self._entry.default)
        if self._entry.tolerance == "flat":
            request = self._request = request.model_copy(update={"check": "pkb"})
        self._stage = Stage.policy
        self._stage_s: dict[str, float] = {}
        self._spent_on = "start"
        self._since = time.monotonic()
        self._measurement: Measurement | None = None
        self._pair: Pair | None = None
        self._slots = slots.MANY
        self._built = False

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
            suite=self._entry.suite,
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
            uses_nccl=self._uses_nccl(),
            mechanisms=self._mechanisms(),
            log=failure.log if failure else "",
            findings=self._findings(failure) if failure else (),
            stage_s={name: round(seconds, 4) for name, seconds in self._stage_s.items()},
            device_s=self._box.allowance.device_s,
            waited_s=self._box.allowance.waited_s,
            environment=self._box.environment(),
        )

    def _findings(self, failure: FailedError) -> tuple[Finding, ...]:
        source = self._request.candidate.source
        found = failure.findings or causes.explain(failure.verdict, failure.summary, failure.log, failure.ranks, source)
        return (*unwaited.unwaited(failure.verdict, source, found), *found)

    def _uses_nccl(self) -> bool:
        seen = self._pair is not None and self._pair.uses_collectives
        return seen or policy.names_nccl(self._request.candidate.source) is not None

    def _mechanisms(self) -> tuple[Mechanism, ...]:
        if not self._built:
            return ()
        return mechanisms(self._request.candidate.source, self._request.platform, self._uses_nccl())

    def stages(self) -> None:
        """load -> correctness -> stress -> timing, under the lease."""
        with self._ranks() as pair:
            self._load(pair)
            for _ in range(self._request.soak):
                self._correctness(pair)
                ring, communicators = self._rotate(pair)
                self._enter(Stage.stress)
                stress.run(pair, ring, self._slots)
            if self._request.timing:
                self._enter(Stage.timing)
                self._measurement = self._time(pair, Timed(pair, ring, communicators))

    def profile(self, folder: Path, kernel: str) -> Profile:
        """load -> correctness -> profiled calls."""
        if self._request.platform == "cuda":
            with contextlib.suppress(counters.CountersError):
                counters.library()  # compiled now, under no lease; the profiler says what is missing
        with self._ranks() as pair:
            self._load(pair)
            self._correctness(pair)
            self._enter(Stage.timing)
            return Profiler(pair, self._work, folder).make(kernel)

    # -- stages --------------------------------------------------------------------------------------------------------

    def _gate_and_build(self) -> None:
        self._enter(Stage.policy)
        named = policy.names_nccl(self._request.candidate.source)
        if named is not None and self._request.collectives == "refuse":
            raise FailedError(Verdict.policy, f"the candidate uses NCCL itself, and this run refuses that: {named}")
        self._enter(Stage.build)
        report = self._builds.build(self._request.candidate)
        if report.verdict is Verdict.policy:
            self._stage = Stage.policy
        if report.verdict is not None:
            raise FailedError(report.verdict, report.summary, log=report.log)
        self._built = True

    @contextlib.contextmanager
    def _ranks(self) -> Iterator[Pair]:
        """Reference and candidate ranks, connected, under the lease. The candidate's are gone afterwards, and those of
        the next are on their way."""
        self._enter(Stage.load)
        box = self._box
        box.allowance.charge(box.ready() * box.world_size)
        with box.lease().hold(allowance=box.allowance) as locks:
            box.bring_up()
            reference = box.prepare(self._entry, self._case, self._request.dtype)
            candidate = box.candidate()
            self._pair = pair = Pair(box, self._request, reference, candidate)
            try:
                pair.ask_reference("attach", {"folder": str(candidate.exchange)}, "attaching the reference ranks")
                yield pair
            except FailedError as failed:
                self._account("diagnosis")
                if failed.wrong is not None:
                    failed.findings = probing.diagnose(pair, failed.wrong)
                elif failed.verdict is Verdict.runtime_error and crash.from_device(failed.ranks, failed.summary):
                    self._end_candidate(pair)
                    failed.findings = (*crash.locate(pair, self._load), *self._findings(failed))
                raise
            except BudgetEndedError:  # the ranks that were waited for have been killed
                self._check_devices([pid for ranks in (reference, candidate) if not ranks.alive for pid in ranks.pids])
                raise
            finally:
                self._account("cleanup")
                self._end_candidate(pair)
                box.refill(locks if self._refill else ())

    def _end_candidate(self, pair: Pair) -> None:
        """The candidate's ranks are gone, and have left the GPUs, before the lease goes on. Safe to call twice."""
        candidate = pair.candidate
        if not candidate.alive:
            return
        try:
            store.harvest(candidate.scratch / "cache", self._request.candidate.hash)
        finally:
            candidate.kill()
        self._check_devices(candidate.pids)

    def _check_devices(self, pids: list[int]) -> None:
        """The candidate must have left the GPUs before the lease goes on."""
        if self._box.platform.name == "cuda" and (left := cuda.wait_gone(pids)):
            raise SandboxError(f"killed processes {left} still hold GPU memory")

    def _load(self, pair: Pair) -> None:
        store.stock(pair.candidate.scratch / "cache", self._request.candidate.hash)
        path = write_candidate(pair.candidate.scratch, self._request.candidate)
        entry = self._entry
        use: dict[str, Any] = {"updates": entry.updates, "scratch": entry.scratch, "changing": entry.changing}
        use |= {"few": entry.few, "gradients": entry.published}
        pair.ask("load", {"path": str(path), "use": use}, load_deadline(self._limits))

    def _correctness(self, pair: Pair) -> None:
        """Single calls, each drained, on fresh inputs: in new buffers, and at last in the same buffers again."""
        self._enter(Stage.correctness)
        trials = self._request.trials
        self._slots = slots.MANY
        for trial in range(trials):
            slot = trial % self._slots
            self._slots = min(self._slots, slots.number(pair.give_inputs(slot)))
            limit = self._limits.seconds_of_first_call(self._request.world_size) if trial == 0 else self._limits.call_s
            replies = pair.ask("call", {"slot": slot}, pair.call_deadline(limit))
            before: list[Other] = []
            if trial:
                former = (trial - 1) % self._slots
                before.append(("the former call's inputs", {"slot": former}, Verdict.integrity))
            pair.judge(replies, [{"slot": slot}], one=True, trial=trial, verdict=Verdict.wrong_values, others=before)
        stress.in_place(pair, (trials - 1) % self._slots, trials)
        if self._request.collectives == "refuse" and pair.uses_collectives:
            raise FailedError(
                Verdict.policy, "`solution` calls collectives of torch.distributed; this run refuses that"
            )

    def _rotate(self, pair: Pair) -> tuple[int, int]:
        """Fill the slots and make rings of them on both sides; returns a ring's entries and the reference's number of
        communicators."""
        for slot in range(min(self._request.trials, self._slots), self._slots):
            pair.give_inputs(slot)
        copies = slots.copies(self._slots, self._writes)
        message = {"copies": copies, "exchange": slots.exchange(pair.ask_reference("alike", {}, "comparing inputs"))}
        rotated = pair.ask_reference("rotate", message, "copying inputs")
        pair.ask("rotate", message, self._limits.first_call_s)
        return self._slots * copies, rotated[0]["communicators"]

    def _time(self, pair: Pair, timed: Timed) -> Measurement:
        platform, pkb = self._box.platform, self._request.protocol == "pkb"
        # Inputs that calls write into are restored before a sample.
        calls = 1 if self._writes else None
        timed.settle()
        found = {"eager": measure.alternate(timed.reference("eager"), timed.candidate("eager"), calls)}
        timed.audits.judge()
        note = "the pkb protocol has no device-only figure" if pkb else self._time_device(timed, found)
        timed.audits.judge()  # of the candidate's first block too, if the reference cannot be captured
        timed.look_for_unclocked_work()
        seen = {mode: self._seen_from_outside(pair, timed, mode, one) for mode, one in found.items()}
        steady = self._time_steady(pair, timed, found["eager"]) if pkb else None
        there = {"eager": timed.only_reference("eager", found["eager"].plan)}
        timed.look_for_work_beside()
        self._end_candidate(pair)
        timings = {}
        for mode, one in found.items():
            gone = timed.only_reference(mode, one.plan)
            one, slowed = undisturbed(one, there.get(mode, []), gone, *platform.quiet)
            timings[mode] = one.timing(platform.noise).model_copy(
                update={"audited": timed.audits.done[mode], "outside_us": seen[mode], "reference_slowed": slowed}
            )
        return self._measurement_of(steady or timings["eager"], timings.get("device"), note)

    @staticmethod
    def _time_device(timed: Timed, found: dict[str, Alternation]) -> str:
        """Adds what calls take without launches by the host; returns why that cannot be had, or ""."""
        plan = found["eager"].plan
        try:
            # The candidate first: if it cannot be captured, the reference is not timed in vain.
            timed.candidate("device")(Plan(2, plan.calls, expected_us=plan.expected_us))
            found["device"] = measure.alternate(timed.reference("device"), timed.candidate("device"), plan.calls)
        except platforms.NotCapturableError as reason:
            return str(reason)
        return ""

    def _time_steady(self, pair: Pair, timed: Timed, changing: Alternation) -> Timing:
        """By PKB's method, whose inputs nobody changes: checked by calls with `changing` ones. Raises FailedError."""
        steady = measure.pkb(timed.reference("steady"), timed.candidate("steady"))
        if not self._writes:  # back to back calls have updated their inputs again and again
            replies = pair.ask("last", {}, self._limits.call_s)
            pair.judge(
                replies, [timed.given(measure.PKB_ITERATIONS - 1)], one=True, trial=self._request.trials,
                verdict=Verdict.race, note=" (output of the last timed call; single calls were right)",
            )  # fmt: skip
        least_us = changing.timing(self._box.platform.noise).candidate.min_us
        if steady.candidate.median_us * _MOST_BY_REPETITION < least_us:
            raise FailedError(
                Verdict.integrity,
                f"the same calls again and again take {steady.candidate.median_us:.1f} us each, and {least_us:.1f} us "
                "or more where inputs change: answers are kept",
            )
        return steady

    def _seen_from_outside(self, pair: Pair, timed: Timed, mode: str, found: Alternation) -> float:
        timing = found.timing(self._box.platform.noise)
        try:
            return timed.look_from_outside(mode, timing)
        except BusyError:
            self._end_candidate(pair)
            gone = timed.calm(mode, timing)
            if not (gone and self._suspected):
                raise BusyError(gone_with_candidate=gone) from None
            raise FailedError(
                Verdict.integrity,
                "beside this candidate the reference takes longer than it claims, twice, and not when its processes "
                "have ended: it keeps the machine busy while it is to wait",
            ) from None

    def _measurement_of(self, eager: Timing, device: Timing | None, note: str) -> Measurement:
        platform, request = self._box.platform, self._request
        names = platform.device_names()
        stored = calibration.load(platform.name, names)
        peaks = stored.peaks(request.world_size) if stored else None
        floors = roofline.floors(self._work, names[0], request.dtype, request.world_size, peaks)
        for timing in filter(None, (eager, device)):
            if (
                floors.sol_us is not None
                and floors.sol_from == "datasheet"
                and timing.candidate.median_us < floors.sol_us
            ):
                raise FailedError(
                    Verdict.integrity,
                    f"{timing.candidate.median_us:.2f} us a call is less than this machine needs for the work at all "
                    f"({floors.sol_us:.2f} us, bound by {floors.bound_by}): it is not done in the timed calls",
                )
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

    @property
    def _writes(self) -> bool:
        """Whether `solution` may write into arguments."""
        return bool(self._entry.updates or self._entry.scratch)

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _enter(self, stage: Stage) -> None:
        self._account(str(stage))
        if self._pair is not None:
            self._pair.stage = stage
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
        return f"{trials}, {figure(ratio.value)}x the reference {interval(ratio)}".rstrip()
