"""The timing stage: blocks of both sides in alternation, their outputs audited, their claims seen from outside.

What a candidate's rank says of itself is believed only as far as it can be checked: a share of the timed outputs is
compared in full, this process's own clock must cover the claimed times, no time may beat the floor, and the reference
must have been as fast beside the candidate as it is without. Imports no torch.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
import secrets
import time
from dataclasses import asdict, replace
from typing import Any

from harness import measure, outside, platforms
from harness.errors import SandboxError
from harness.measure import Alternation, Block
from harness.pair import FailedError, Item, Other, Pair
from harness.platforms import LEAST_KEPT, Plan
from harness.types import Timing, Verdict
from harness.wording import one_line

AUDITED = 0.3
"""Share of samples of which one output is kept for judgement."""
_AUDITS_S, _MIN_AUDITS, _BATCH, _BATCH_BYTES = 0.1, 8, 8, 64 << 20
"""Kept outputs are compared for this long; at least so many, and so many or so much of a block."""
_IDLE_SHARE, _IDLE_S = 0.25, 0.1
"""What a rank may use of a core, and all together of seconds, while the reference is timed."""
_LEAST_US, _MOST_US = 1e-6, 1e12
"""No clock tells less, and nobody waits for more."""
_random = random.SystemRandom()


class Timed:
    """The two sides of a measurement as `measure` wants them."""

    def __init__(self, pair: Pair, ring: int, communicators: int, writes: bool = False) -> None:
        """`writes`: whether calls may write into their arguments."""
        self._pair, self._ring, self._writes = pair, ring, writes
        self._next_communicator = itertools.cycle(range(communicators))
        self._blocks: list[tuple[str, Plan, list[set[int]]]] = []
        """Mode and plan of each of the candidate's blocks since the last judgement, and each rank's audited samples."""
        self._captured = False
        """Whether the candidate's calls are in a CUDA graph, which all its device blocks use."""
        self.audited = {"eager": 0, "device": 0}
        """Timed outputs that have been compared in full, by mode."""

        self._began = time.monotonic()
        self._reference_s = self._idle_cpu_s = 0.0
        """How long the reference was timed while the candidate was to wait, and what it used of the processors."""

    # -- blocks --------------------------------------------------------------------------------------------------------

    def reference(self, mode: str) -> measure.TimeBlock:
        # Outputs are audited there too, so that both sides are timed alike.
        return lambda plan: self._time_reference(mode, self._audits(plan, mode))

    def _time_reference(self, mode: str, plan: Plan, least_s: float = 0.0, *, clocks: bool = True) -> Block:
        """`least_s` is for candidates: nobody waits for the reference in vain. `clocks`: whether to read them, which
        asks the driver and may have to wait for it. Raises NotCapturableError."""
        plan = replace(plan, communicator=next(self._next_communicator))
        ranks, idle = self._pair.reference, self._pair.candidate
        began, used = time.monotonic(), idle.cpu_s() if idle.alive else 0.0
        ranks.begin("time", {"mode": mode, "plan": asdict(plan)})
        reading = self._pair.box.read_clocks() if clocks else measure.Reading()
        replies = self._pair.expect(ranks.wait(120), "timing the reference")
        if refused := [reply["not_capturable"] for reply in replies if "not_capturable" in reply]:
            raise platforms.NotCapturableError(f"the reference {refused[0]}")
        if idle.alive:
            self._reference_s += time.monotonic() - began
            self._idle_cpu_s += idle.cpu_s() - used
        times, host = [reply["times_us"] for reply in replies], [reply["host_us"] for reply in replies]
        audited = [set(reply["audited"]) for reply in replies]
        return Block(_counted(times, plan, audited), _counted(host, plan, audited), reading)

    def candidate(self, mode: str) -> measure.TimeBlock:
        def time_block(plan: Plan) -> Block:
            if mode != "steady":  # nobody in there shall know how many calls make a block
                plan = replace(plan, samples=max(2, plan.samples - _random.randrange(1 + plan.samples // 8)))
            return self._time(mode, self._audits(plan, mode))

        return time_block

    def _time(
        self, mode: str, plan: Plan, least_s: float = 0.0, *, clocks: bool = True, all_count: bool = False
    ) -> Block:
        """One block of the candidate's, which may take `least_s` at least. `all_count`: samples with audits as well.
        Raises NotCapturableError."""
        pair, reading = self._pair, measure.Reading()
        # No call may be silent for longer than `call_s`, however long those before were.
        call_us = min(10 * plan.expected_us, max(plan.expected_us, 1e6 * pair.limits.call_s))
        sample_s = (plan.prime_us + plan.calls * plan.repeats * call_us) / 1e6
        limit = pair.call_deadline(pair.limits.call_s + max(plan.samples * sample_s, least_s))

        def look() -> None:
            nonlocal reading
            if clocks:
                reading = pair.box.read_clocks()

        message = {"mode": mode, "plan": asdict(plan), "block": len(self._blocks)}
        began = time.monotonic()
        replies = pair.ask("time", message, limit, meanwhile=look, when="in timed calls back to back")
        refused = [reply["not_capturable"] for reply in replies if "not_capturable" in reply]
        if refused and mode == "device" and not self._captured:  # at any other time it is no answer
            raise platforms.NotCapturableError(one_line(refused[0], 300))
        self._captured |= mode == "device"
        # What the host needed is a remark, not a result: a rank that reports nonsense there loses only the remark.
        host = [_numbers(reply.get("host_us"), plan.samples) or [] for reply in replies]
        times = [_times(reply, plan.samples) for reply in replies]
        audited = [_samples(reply, plan) for reply in replies]
        self._blocks.append((mode, plan, audited))
        # Deadlines of later blocks follow from these times: they cannot be longer than they took.
        took_us = (time.monotonic() - began) * 1e6
        if any(sum(t) * plan.calls * plan.repeats > 1.1 * took_us for t in times):
            raise FailedError(Verdict.integrity, "a rank claims that its calls took longer than they were waited for")
        if all_count:
            return Block(times, host, reading)
        return Block(_counted(times, plan, audited), _counted(host, plan, audited), reading)

    def _audits(self, plan: Plan, mode: str) -> Plan:
        """The plan with a seed of its own, and with random calls of random samples to be audited."""
        if mode == "steady":  # PKB's method, as it is
            return plan
        plan = replace(plan, seed=secrets.randbits(60))
        if mode == "eager":
            # Each rank draws for itself; the share is that of samples of which any has.
            ranks = self._pair.candidate.world_size
            return replace(plan, audit_chance=AUDITED / (plan.calls * plan.repeats * ranks))
        samples = sorted(_random.sample(range(plan.samples), min(plan.samples - 1, math.ceil(AUDITED * plan.samples))))
        audits = tuple((sample, sample * plan.calls + _random.randrange(plan.calls)) for sample in samples)
        return replace(plan, audits=audits)

    # -- outputs -------------------------------------------------------------------------------------------------------

    def judge_audits(self) -> None:
        """Compare outputs of timed calls in full, as many as there is time for. Raises FailedError."""
        pair = self._pair
        replies = pair.ask("audits", {}, pair.limits.call_s)
        each = [self._known(reply.get("there"), rank) for rank, reply in enumerate(replies)]
        kept: dict[tuple[int, int], int] = {}
        for rank, known in enumerate(each):
            # A rank whose outputs are large has room for fewer of them.
            asked = sum(len(plan.audits) or len(audited[rank]) for _, plan, audited in self._blocks)
            idle = any(plan.audit_chance > 0 and not audited[rank] for _, plan, audited in self._blocks)
            if idle or len(known) < min(asked, LEAST_KEPT):
                raise FailedError(Verdict.integrity, "the ranks have not kept the outputs that they were asked to keep")
            for key, size in known.items():
                kept[key] = max(size, kept.get(key, 0))
        self._plausible()
        began, done = time.monotonic(), 0
        blocks = sorted({block for block, _ in kept})
        _random.shuffle(blocks)
        for block in blocks:  # the reference draws its ring anew for each
            calls = sorted(call for at, call in kept if at == block)
            count = min(len(calls), max(1, min(_BATCH, _BATCH_BYTES // max(1, kept[block, calls[0]]))))
            batch = sorted(_random.sample(calls, count))
            self._judge(block, batch, [[n for n, call in enumerate(batch) if (block, call) in own] for own in each])
            done += len(batch)
            self.audited[self._blocks[block][0]] += len(batch)
            if done >= _MIN_AUDITS and time.monotonic() > began + _AUDITS_S:
                break
        pair.ask("audits", {"take": [], "done": True}, pair.limits.call_s)
        self._blocks.clear()

    def _plausible(self) -> None:
        """Whether the ranks have drawn as many samples as chance would. Raises FailedError."""
        for rank in range(self._pair.candidate.world_size):
            drawn, expected = 0, 0.0
            for _, plan, audited in self._blocks:
                if plan.audit_chance > 0:
                    drawn += len(audited[rank])
                    spared = (1 - plan.audit_chance) ** (plan.calls * plan.repeats)
                    expected += plan.samples * (1 - spared) + spared**plan.samples
            if abs(drawn - expected) > 6 * math.sqrt(expected) + 6:
                raise FailedError(
                    Verdict.integrity,
                    f"rank {rank} has kept outputs of {drawn} timed samples; by chance they are {expected:.0f}",
                )

    def _known(self, there: Any, rank: int) -> dict[tuple[int, int], int]:
        """Bytes of the outputs that a rank says it has kept, by (block, call). Raises FailedError if it cannot be."""
        good = isinstance(there, list) and all(
            isinstance(entry, list) and len(entry) == 3 and all(isinstance(v, int) and v >= 0 for v in entry)
            for entry in there
        )
        if not good or not all(self._asked(block, call, rank) for block, call, _ in there):
            raise FailedError(Verdict.integrity, "a rank has kept outputs that nobody asked for")
        return {(block, call): size for block, call, size in there}

    def _asked(self, block: int, call: int, rank: int) -> bool:
        """Whether a rank was to keep that output."""
        if block >= len(self._blocks):
            return False
        _, plan, audited = self._blocks[block]
        return any(call == at for _, at in plan.audits) or call // plan.calls in audited[rank]

    def _judge(self, block: int, calls: list[int], which: list[list[int]]) -> None:
        pair = self._pair
        taken = [{"take": [[block, calls[n]] for n in own], "done": False} for own in which]
        replies = pair.ask("audits", taken, pair.limits.call_s)

        def others(number: int) -> list[Other]:
            call = calls[number]
            item = self._item(block, call)
            found: list[Other] = [
                ("these inputs before their contents were changed", item | {"sample": -1}, Verdict.integrity)
            ]
            mode, plan, _ = self._blocks[block]
            # Before each sample only the entries that it goes round are changed.
            before = item["sample"] - 1 if mode == "device" else (call - self._ring) // plan.calls
            if 0 <= before < item["sample"]:
                former = item | {"sample": before}
                found.append(("these inputs as they were some calls before", former, Verdict.integrity))
            if item["sample"] > 0:
                found.append(("the call before", self._item(block, call - 1), None))
            return found

        mode = self._blocks[block][0]
        pair.judge(
            replies, [self._item(block, call) for call in calls], trial=pair.request.trials,
            verdict=Verdict.race, others=others, which=which,
            note=f" (output of a timed call, {'CUDA graph' if mode == 'device' else mode}; calls before were right)",
        )  # fmt: skip

    def _item(self, block: int, call: int) -> Item:
        """What a timed call was given. A CUDA graph makes the same calls in every sample."""
        mode, plan, _ = self._blocks[block]
        entry = call % plan.calls if mode == "device" else call % self._ring
        return {"seed": plan.seed, "sample": call // plan.calls, "entry": entry}

    def given(self, call: int) -> Item:
        """What call number `call` gets if the contents of the ring are not changed."""
        return {"seed": 0, "sample": -1, "entry": call % self._ring}

    # -- claims --------------------------------------------------------------------------------------------------------

    def look_from_outside(self, mode: str, timing: Timing) -> float:
        """Microseconds of one of the candidate's calls as this process's clock has it. Raises FailedError if that is
        well above what the ranks claim."""
        # Our own clock runs: nothing that may have to wait for the driver.
        reference = functools.partial(self._time_reference, mode, clocks=False)

        def candidate(plan: Plan, least_s: float) -> Block:
            # Audited as the blocks that count are, or a call could tell them apart. What calls write into is not
            # restored before they are repeated: nobody knows what is right there.
            if mode == "eager" and not (self._writes and plan.repeats > 1):
                plan = self._audits(plan, mode)
            return self._time(mode, plan, least_s, clocks=False, all_count=True)

        seen = outside.look(self._pair, candidate, reference, timing, self.look_for_work_beside)
        self.judge_audits()
        return seen

    def look_for_work_beside(self) -> None:
        """Raises FailedError if the candidate's ranks, or processes that they have started, were at work when they were
        to wait: whatever slows the reference makes its ratio better."""
        share = self._idle_cpu_s / max(self._reference_s, 1e-9) / self._pair.candidate.world_size
        if share > _IDLE_SHARE and self._idle_cpu_s > _IDLE_S:
            raise FailedError(
                Verdict.integrity,
                f"its ranks kept {share:.0%} of a core each busy while the reference was timed and they were to wait",
            )
        used = self._pair.candidate.started_cpu_s()
        if used > max(_IDLE_S, _IDLE_SHARE * (time.monotonic() - self._began)):
            raise FailedError(
                Verdict.integrity, f"processes that it started used {used:.1f} s of the processors beside it"
            )

    def only_reference(self, mode: str, plan: Plan) -> list[Block]:
        """Three blocks of the reference in a row, while the candidate waits or when it is gone."""
        return [self.reference(mode)(replace(plan, samples=max(3, plan.samples // 2))) for _ in range(3)]


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


def _counted(values: list[list[float]], plan: Plan, audited: list[set[int]]) -> list[list[float]]:
    """Of each rank, those of samples that no rank has audited: the same of all ranks, one at least. All, if that leaves
    none: a few samples (there are blocks of two) may all be audited, as each rank audits one at least, by its own
    draw. That is so on both sides."""
    without = set().union(*audited) | {sample for sample, _ in plan.audits}
    counted = [sample for sample in range(plan.samples) if sample not in without] or range(plan.samples)
    return [[rank[sample] for sample in counted] if rank else [] for rank in values]


def _samples(reply: dict[str, Any], plan: Plan) -> set[int]:
    """The samples that a candidate's rank says it has audited by its own draw. Raises FailedError unless there are
    such, and it was to draw."""
    said, there = reply.get("audited"), plan.samples if plan.audit_chance > 0 else 0
    if not isinstance(said, list) or not all(isinstance(v, int) and 0 <= v < there for v in said):
        raise FailedError(Verdict.integrity, "a rank reported audits of samples that there are none of")
    return set(said)


def _times(reply: dict[str, Any], samples: int) -> list[float]:
    """The times that a candidate's rank claims. Raises FailedError unless it is a positive number for every sample."""
    times = _numbers(reply.get("times_us"), samples)
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
