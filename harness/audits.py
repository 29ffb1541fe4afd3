"""Outputs of timed calls: which were kept, whether that is by chance, and whether they are right. Imports no torch.

Each of the candidate's ranks draws for itself, when a call has been made, whether its output is copied; what it has
kept of the blocks since the last judgement is compared in full, as many as there is time for.
"""

from __future__ import annotations

import math
import random
import secrets
import time
from dataclasses import dataclass, replace
from typing import Any

from harness.pair import FailedError, Item, Other, Pair
from harness.platforms import LEAST_KEPT, Plan
from harness.types import Verdict

AUDITED, FIRST = 0.25, 0.1
"""Shares of samples of which one output is kept for judgement: any, by a draw after the call, and the first. Together
about three in ten."""
_AUDITS_S, _MIN_AUDITS, _BATCH, _BATCH_BYTES = 0.1, 8, 8, 64 << 20
"""Kept outputs are compared for this long; at least so many, and so many or so much of a block."""
_FORMER = (
    "these inputs as they were some calls before: kept since then, or read on a stream that has not waited for the "
    "current one, on which they change"
)
_random = random.SystemRandom()


@dataclass(frozen=True)
class TimedBlock:
    """One of the candidate's blocks since the last judgement."""

    mode: str
    plan: Plan
    audited: list[set[int]]
    """Of each rank, the samples of which it says that it has kept an output."""


class Audits:
    """Of one candidate's timed calls."""

    def __init__(self, pair: Pair, ring: int) -> None:
        """`ring`: entries that calls go round."""
        self._pair, self._ring = pair, ring
        self._blocks: list[TimedBlock] = []
        self.done = {"eager": 0, "device": 0}
        """Outputs that have been compared in full, by mode."""

    def planned(self, plan: Plan, mode: str) -> Plan:
        """The plan with a seed of its own and audits by chance, unless it has them of every call."""
        if mode == "steady":  # PKB's method, as it is
            return plan
        if plan.audit_chance == 1:
            return replace(plan, seed=secrets.randbits(60))
        # Each rank draws for itself; shares are those of samples of which any has.
        ranks = self._pair.candidate.world_size
        chance = AUDITED / (plan.calls * plan.repeats * ranks)
        return replace(plan, seed=secrets.randbits(60), audit_chance=chance, first_chance=FIRST / ranks)

    @property
    def number(self) -> int:
        """Of the block that comes next."""
        return len(self._blocks)

    def add(self, block: TimedBlock) -> None:
        """To be judged."""
        self._blocks.append(block)

    def judge(self) -> None:
        """Compare outputs of the blocks so far in full, as many as there is time for. Raises FailedError."""
        pair = self._pair
        replies = pair.ask("audits", {}, pair.limits.call_s)
        each = [self._known(reply.get("there"), rank) for rank, reply in enumerate(replies)]
        kept: dict[tuple[int, int], int] = {}
        for rank, known in enumerate(each):
            # A rank whose outputs are large has room for fewer of them.
            asked = sum(len(block.audited[rank]) for block in self._blocks)
            idle = any(block.plan.audit_chance > 0 and not block.audited[rank] for block in self._blocks)
            if idle or len(known) < min(asked, LEAST_KEPT):
                raise FailedError(Verdict.integrity, "the ranks have not kept the outputs that they were asked to keep")
            for key, size in known.items():
                kept[key] = max(size, kept.get(key, 0))
        self._plausible()
        began, done = time.monotonic(), 0
        numbers = sorted({number for number, _ in kept})
        _random.shuffle(numbers)
        for number in numbers:  # the reference draws its ring anew for each
            calls = sorted(call for at, call in kept if at == number)
            count = min(len(calls), max(1, min(_BATCH, _BATCH_BYTES // max(1, kept[number, calls[0]]))))
            batch = sorted(_random.sample(calls, count))
            self._judge(number, batch, [[n for n, call in enumerate(batch) if (number, call) in own] for own in each])
            done += len(batch)
            self.done[self._blocks[number].mode] += len(batch)
            if done >= _MIN_AUDITS and time.monotonic() > began + _AUDITS_S:
                break
        pair.ask("audits", {"take": [], "done": True}, pair.limits.call_s)
        self._blocks.clear()

    def _plausible(self) -> None:
        """Whether the ranks have drawn as many samples as chance would. Raises FailedError."""
        for rank in range(self._pair.candidate.world_size):
            drawn, expected = 0, 0.0
            for block in self._blocks:
                plan = block.plan
                if plan.audit_chance > 0:
                    drawn += len(block.audited[rank])
                    spared = (1 - plan.first_chance) * (1 - plan.audit_chance) ** (plan.calls * plan.repeats)
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
        if not good or not all(self._drawn(number, call, rank) for number, call, _ in there):
            raise FailedError(Verdict.integrity, "a rank has kept outputs that nobody asked for")
        return {(number, call): size for number, call, size in there}

    def _drawn(self, number: int, call: int, rank: int) -> bool:
        """Whether a rank has said that it keeps an output of that call's sample."""
        if number >= len(self._blocks):
            return False
        block = self._blocks[number]
        return call // (block.plan.calls * block.plan.turns) in block.audited[rank]

    def _judge(self, number: int, calls: list[int], which: list[list[int]]) -> None:
        """Outputs of these calls of a block; `which`: of each rank, those of them that it has."""
        pair, block = self._pair, self._blocks[number]
        taken = [{"take": [[number, calls[n]] for n in own], "done": False} for own in which]
        replies = pair.ask("audits", taken, pair.limits.call_s)

        def others(n: int) -> list[Other]:
            call = calls[n]
            item = self._item(block, call)
            found: list[Other] = [
                ("these inputs before their contents were changed", item | {"sample": -1}, Verdict.integrity)
            ]
            # Before each sample only the entries that it goes round are changed.
            before = item["sample"] - 1 if block.mode == "device" else (call - self._ring) // block.plan.calls
            if 0 <= before < item["sample"]:
                former = item | {"sample": before}
                found.append((_FORMER, former, Verdict.integrity))
            if item["sample"] > 0:
                found.append(("the call before", self._item(block, call - 1), None))
            return found

        mode = "CUDA graph" if block.mode == "device" else block.mode
        pair.judge(
            replies, [self._item(block, call) for call in calls], trial=pair.request.trials,
            verdict=Verdict.race, others=others, which=which,
            note=f" (output of a timed call, {mode}; calls before were right)",
        )  # fmt: skip

    def _item(self, block: TimedBlock, call: int) -> Item:
        """What a timed call was given; the contents of its turn, if a sample has several. A CUDA graph makes the same
        calls in every sample."""
        plan = block.plan
        captured = block.mode == "device"
        entry = call % plan.calls if captured else call % self._ring
        return {"seed": plan.seed, "sample": call // plan.calls, "entry": entry, "captured": captured}


def counted(values: list[list[float]], plan: Plan, audited: list[set[int]]) -> list[list[float]]:
    """Of each rank, those of samples that no rank has audited: the same of all ranks, one at least. All, if that leaves
    none: a few samples (there are blocks of two) may all be audited, as each rank audits one at least, by its own
    draw. That is so on both sides."""
    without = set().union(*audited)
    those = [sample for sample in range(plan.samples) if sample not in without] or range(plan.samples)
    return [[rank[sample] for sample in those] if rank else [] for rank in values]


def samples_of(reply: dict[str, Any], plan: Plan) -> set[int]:
    """The samples that a candidate's rank says it has audited by its own draw. Raises FailedError unless there are
    such, and it was to draw."""
    said, there = reply.get("audited"), plan.samples if plan.audit_chance > 0 else 0
    if not isinstance(said, list) or not all(isinstance(v, int) and 0 <= v < there for v in said):
        raise FailedError(Verdict.integrity, "a rank reported audits of samples that there are none of")
    return set(said)
