"""The timing stage: blocks of both sides in alternation, their outputs audited (`audits.py`), their claims seen from
outside (`outside.py`).

What a candidate's rank says of itself is believed only as far as it can be checked: a share of the timed outputs is
compared in full, this process's own clock must cover the claimed times, no time may beat the floor, and the reference
must have been as fast beside the candidate as it is without. Imports no torch.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from dataclasses import asdict, replace
from typing import Any

from harness import measure, outside, platforms
from harness.audits import Audits, TimedBlock, counted, samples_of
from harness.errors import SandboxError
from harness.measure import Alternation, Block
from harness.pair import FailedError, Item, Pair
from harness.platforms import Plan
from harness.types import Timing, Verdict
from harness.unclocked import Elsewhere
from harness.wording import one_line

_IDLE_SHARE, _IDLE_S, _SUSPECTED_S = 0.25, 0.1, 2.0
"""What a rank may use of a core, or want while others have it, and all together of seconds, while the reference is
timed; and how long that is timed on where the share alone is more."""
_SETTLES_S, _LOOK_S = 10.0, 0.2
"""How long processes that it has started may have work of their own before anything is timed, and for how long each
look at them is."""
_STOPPED_SHARE, _STOPPED_S = 0.05, 0.05
"""The same of ranks that are stopped, all together: these use nothing, but for what ends the call that each is in."""
_LEAST_US, _MOST_US = 1e-6, 1e12
"""No clock tells less, and nobody waits for more."""
_random = random.SystemRandom()


class Timed:
    """The two sides of a measurement as `measure` wants them."""

    def __init__(self, pair: Pair, ring: int, communicators: int) -> None:
        self._pair, self._ring = pair, ring
        self.audits = Audits(pair, ring)
        self._next_communicator = itertools.cycle(range(communicators))
        self._captured = False
        """Whether the candidate's calls are in a CUDA graph, which all its device blocks use."""
        self._elsewhere = Elsewhere(pair.box.platform.unclocked)
        self._rest_s = 0.0
        """How long the candidate's ranks took to collect what timed calls have left behind."""
        self._reference_s = self._idle_wanted_s = self._started_used_s = 0.0
        """How long the reference was timed while the candidate was to wait; what its ranks wanted of the processors
        meanwhile, and what processes that they have started used."""
        self._stopped_s = 0.0
        """How long it was timed while the candidate was stopped."""
        self._turning_us = 0.0
        """What the host needs for a turn besides its calls, on the reference's slowest rank."""
        self._watched: tuple[str, Plan] | None = None
        """What was timed last then."""

    def settle(self) -> None:
        """Wait until processes that the candidate has started have nothing to do, if that is soon: a pool of workers
        takes a while to come up."""
        followers, ends = self._pair.candidate.followers, time.monotonic() + _SETTLES_S
        while followers.pids() and time.monotonic() < ends:
            used_s = followers.watch()
            time.sleep(_LOOK_S)
            if used_s() <= _IDLE_SHARE * _LOOK_S:
                return

    # -- blocks --------------------------------------------------------------------------------------------------------

    def reference(self, mode: str) -> measure.TimeBlock:
        # Outputs are audited there too, so that both sides are timed alike.
        return lambda plan: self._time_reference(mode, self.audits.planned(plan, mode), alone=True)

    def _time_reference(
        self, mode: str, plan: Plan, least_s: float = 0.0, *,
        clocks: bool = True, alone: bool = False, all_count: bool = False,
    ) -> Block:  # fmt: skip
        """`least_s` is for candidates: nobody waits for the reference in vain. `clocks`: whether to read them, which
        asks the driver and may have to wait for it. `alone`: stop the candidate meanwhile; else what it does beside is
        held against it. `all_count`: samples with audits as well. Raises NotCapturableError."""
        plan = replace(plan, communicator=next(self._next_communicator))
        ranks, idle = self._pair.reference, self._pair.candidate
        watched = idle.alive and not alone
        wanted, used_s = (idle.wanted_s(), idle.followers.watch()) if watched else (0.0, float)
        with idle.followers.stopped() if alone and idle.alive else contextlib.nullcontext():
            began = time.monotonic()
            ranks.begin("time", {"mode": mode, "plan": asdict(plan)})
            reading = self._pair.box.read_clocks() if clocks else measure.Reading()
            replies = self._pair.expect(ranks.wait(120), "timing the reference")
            took_s = time.monotonic() - began
        if alone and idle.alive:
            self._stopped_s += took_s
            self._look_at_the_stopped()
        if refused := [reply["not_capturable"] for reply in replies if "not_capturable" in reply]:
            raise platforms.NotCapturableError(f"the reference {refused[0]}")
        if watched:
            self._reference_s += took_s
            self._idle_wanted_s += max(0.0, idle.wanted_s() - wanted)
            self._started_used_s += used_s()
            self._watched = mode, plan
        times, host = [reply["times_us"] for reply in replies], [reply["host_us"] for reply in replies]
        audited = [set(reply["audited"]) for reply in replies]
        self._turning_us = max(measure.median(reply["turning_us"] or [0.0]) for reply in replies)
        if all_count:
            return Block(times, host, reading, 1e6 * took_s)
        self._elsewhere.taking_us += [measure.median(own) for reply in replies if (own := reply["taking_us"])]
        self._elsewhere.output_bytes = max(reply["output_bytes"] for reply in replies)
        self._elsewhere.add(
            "reference", mode, plan, times, host, audited, [reply["lead_us"] for reply in replies], 1e6 * took_s
        )
        return Block(counted(times, plan, audited), counted(host, plan, audited), reading, 1e6 * took_s)

    def candidate(self, mode: str) -> measure.TimeBlock:
        def time_block(plan: Plan) -> Block:
            if mode != "steady":  # nobody in there shall know how many calls make a block
                plan = replace(plan, samples=max(2, plan.samples - _random.randrange(1 + plan.samples // 8)))
            return self._time(mode, self.audits.planned(plan, mode))

        return time_block

    def _time(
        self, mode: str, plan: Plan, least_s: float = 0.0, *, clocks: bool = True, all_count: bool = False
    ) -> Block:
        """One block of the candidate's, which may take `least_s` at least. `all_count`: samples with audits as well.
        Raises NotCapturableError."""
        pair, reading = self._pair, measure.Reading()
        # No call may be silent for longer than `call_s`, however long those before were.
        call_us = min(10 * plan.expected_us, max(plan.expected_us, 1e6 * pair.limits.call_s))
        sample_s = (plan.turns * plan.prime_us + plan.calls * plan.repeats * call_us) / 1e6
        limit = pair.call_deadline(pair.limits.call_s + max(plan.samples * sample_s, least_s))

        def look() -> None:
            nonlocal reading
            if clocks:
                reading = pair.box.read_clocks()

        message = {"mode": mode, "plan": asdict(plan), "block": self.audits.number}
        began = time.monotonic()
        replies = pair.ask("time", message, limit, meanwhile=look, when="in timed calls back to back")
        took_us = (time.monotonic() - began) * 1e6
        # What the calls have left behind is collected now: beside the reference it would look like work, and in the
        # next block like calls that are longer than claimed.
        pair.ask("rest", {}, pair.limits.call_s)
        self._rest_s += time.monotonic() - began - took_us / 1e6
        if self._rest_s > pair.limits.call_s:
            raise FailedError(
                Verdict.timeout,
                f"what its timed calls leave behind has kept its ranks busy for {self._rest_s:.1f} s between them",
            )
        refused = [reply["not_capturable"] for reply in replies if "not_capturable" in reply]
        if refused and mode == "device" and not self._captured:  # at any other time it is no answer
            raise platforms.NotCapturableError(one_line(refused[0], 300))
        self._captured |= mode == "device"
        # What the host needed is a remark, not a result: a rank that reports nonsense there loses only the remark.
        host = [_numbers(reply.get("host_us"), plan.samples) or [] for reply in replies]
        times = [_times(reply, plan.samples) for reply in replies]
        audited = [samples_of(reply, plan) for reply in replies]
        self.audits.add(TimedBlock(mode, plan, audited))
        # Deadlines of later blocks follow from these times: they cannot be longer than they took.
        if any(sum(t) * plan.calls * plan.repeats > 1.1 * took_us for t in times):
            raise FailedError(Verdict.integrity, "a rank claims that its calls took longer than they were waited for")
        if all_count:
            return Block(times, host, reading, took_us)
        lead = [_times(reply, plan.samples, "lead_us") for reply in replies] if mode != "steady" else []
        self._elsewhere.add("candidate", mode, plan, times, host, audited, lead, took_us)
        return Block(counted(times, plan, audited), counted(host, plan, audited), reading, took_us)

    def given(self, call: int) -> Item:
        """What call number `call` gets if the contents of the ring are not changed."""
        return {"seed": 0, "sample": -1, "entry": call % self._ring}

    # -- claims --------------------------------------------------------------------------------------------------------

    def look_from_outside(self, mode: str, timing: Timing) -> float:
        """Microseconds of one of the candidate's calls as this process's clock has it. Raises FailedError if that is
        well above what the ranks claim; BusyError."""

        def candidate(plan: Plan, least_s: float) -> Block:
            # Audited as the blocks that count are, or a call could tell them apart, where not every output is copied.
            plan = self.audits.planned(plan, mode)
            return self._time(mode, plan, least_s, clocks=False, all_count=True)

        claim, reference = self._claim(mode, timing), self._reference_from_outside(mode)
        seen = outside.look(self._pair, claim, candidate, reference, self.look_for_work_beside)
        self.audits.judge()
        return seen

    def calm(self, mode: str, timing: Timing) -> bool:
        """Whether the reference is found from outside to take what it claims, now that the candidate is gone."""
        return outside.calm(self._claim(mode, timing), self._reference_from_outside(mode))

    def _claim(self, mode: str, timing: Timing) -> outside.Claim:
        copying, bounds = self._elsewhere.copying(mode, timing.calls), self._pair.box.platform.outside(mode)
        return outside.Claim(timing, self._turning_us, copying, bounds)

    def _reference_from_outside(self, mode: str) -> outside.TimeBlock:
        def reference(plan: Plan, least_s: float) -> Block:
            # Our own clock runs: nothing that may have to wait for the driver.
            plan = self.audits.planned(plan, mode)
            return self._time_reference(mode, plan, least_s, clocks=False, all_count=True)

        return reference

    def look_for_unclocked_work(self) -> None:
        """Raises FailedError if work was done where no clock counts it."""
        self._elsewhere.judge()

    def look_for_work_beside(self) -> None:
        """Raises FailedError if the candidate's ranks, or processes that they have started, were at work when they were
        to wait: whatever slows the reference makes its ratio better."""
        ends = time.monotonic() + _SUSPECTED_S
        while not (found := self._at_work_beside(_IDLE_S)) and self._at_work_beside(0.0) and self._watched:
            # Blocks of slow candidates have few samples: a short time, in which going to sleep is a share as well.
            self._time_reference(*self._watched, clocks=False)
            if time.monotonic() > ends:
                break
        if found:
            raise FailedError(Verdict.integrity, found)

    def _at_work_beside(self, least_s: float) -> str:
        """What was at work for more than `least_s` while the reference was timed and it was to wait, and for more of
        that time than may be; "" if nothing was."""
        reference_s, world_size = max(self._reference_s, 1e-9), self._pair.candidate.world_size
        ranks, started = self._idle_wanted_s / reference_s / world_size, self._started_used_s / reference_s
        beside = "while the reference was timed and they were to wait"
        if ranks > _IDLE_SHARE and self._idle_wanted_s > least_s:
            hint = "threads that poll between calls have to sleep until there is work"
            return f"its ranks wanted {ranks:.0%} of a core each {beside}: {hint}"
        if started > _IDLE_SHARE and self._started_used_s > least_s:
            return f"processes that it started used {started:.0%} of a core {beside}"
        return ""

    def _look_at_the_stopped(self) -> None:
        """Raises FailedError if what was stopped while the reference was timed ran all the same."""
        used = self._pair.candidate.followers.used_stopped_s
        if used > max(_STOPPED_S, _STOPPED_SHARE * self._stopped_s):
            raise FailedError(
                Verdict.integrity,
                f"its ranks, and what they started, used {used:.1f} s of the processors while they were stopped, in "
                f"{self._stopped_s:.1f} s of timing the reference",
            )

    def only_reference(self, mode: str, plan: Plan) -> list[Block]:
        """Three blocks of the reference in a row, while the candidate waits or when it is gone."""
        few = replace(plan, samples=max(3, plan.samples // 2))
        return [self._time_reference(mode, self.audits.planned(few, mode)) for _ in range(3)]


def undisturbed(
    found: Alternation, there: list[Block], gone: list[Block], tolerance: float, limit: float
) -> tuple[Alternation, float | None]:
    """The alternation, with the reference's blocks replaced by those taken when the candidate was `gone` if it was more
    than `tolerance` times slower beside it; and how many times, then. Raises FailedError if it was more than `limit`.

    `there` are blocks taken right before it was ended: where calls wait for the host, a machine's own pace changes by a
    third in seconds, and only what lies next to each other in time says whose doing a difference is. There are none of
    calls that the device makes alone. Raises SandboxError if the pace has changed by more than `limit`."""
    without = max(measure.median(block.slowest_us) for block in gone)
    slower = measure.median([us for block in found.reference for us in block.slowest_us]) / without
    nearest = min([slower, *(measure.median(block.slowest_us) / without for block in there)])
    if slower > limit and nearest <= tolerance:
        raise SandboxError("this machine's pace changes too much for times to mean anything")
    if nearest > limit:
        raise FailedError(
            Verdict.integrity, f"the reference took {slower:.2f}x as long while the candidate's processes were there"
        )
    return (found, None) if nearest <= tolerance else (replace(found, reference=gone), slower)


def _times(reply: dict[str, Any], samples: int, what: str = "times_us") -> list[float]:
    """The times that a candidate's rank claims. Raises FailedError unless it is a positive number for every sample."""
    times = _numbers(reply.get(what), samples)
    if times is None:
        raise FailedError(Verdict.integrity, "a rank reported times that are none")
    return times


def _numbers(values: Any, count: int) -> list[float] | None:
    """`count` times that there can be, or None."""
    good = (
        isinstance(values, list)
        and len(values) == count
        and all(isinstance(v, (int, float)) and _LEAST_US <= v <= _MOST_US for v in values)
    )
    return [float(v) for v in values] if good else None
