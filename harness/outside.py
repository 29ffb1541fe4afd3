"""What a call takes by the supervisor's own clock, which nothing in a candidate's process can touch. Imports no torch.

A block whose samples make their calls several times is longer than one without repeats by those calls and by nothing
else: no start, no drain, no barrier, no message. Inputs change before each repeat, and as often in a sample without
repeats: who answers repeats from what is there is wrong, and the changes are in both. Of a third of blocks with repeats
each call's output is copied: who works only when that is done works in all of these calls, by the ranks' clocks or by
ours.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from harness.errors import BusyError
from harness.measure import Block, median
from harness.pair import FailedError, Pair
from harness.platforms import Outside, Plan
from harness.ranks import RankSet
from harness.types import Timing, Verdict
from harness.unclocked import Copying

TimeBlock = Callable[[Plan, float], Block]
"""Times one of the candidate's blocks, which may take so many seconds at least before it counts as hanging."""

_EXTRA_US, _ROUNDS, _ROUNDS_S = 8000.0, 8, 15.0
"""By how much a block with repeated calls is to be longer than one without; and how often and how long that is tried,
until a machine that has other work too has left a candidate alone for so long."""
_ENOUGH_US, _FEW_ROUNDS = 1e6, 3
"""A first look at calls that are far longer than claimed makes only so much of them, and is repeated so often."""
_LEAST_SAMPLES, _MOST_SAMPLES, _BLOCK_US = 4, 60, 300_000.0
"""Of a block; and how long one may take for it to be as much longer as that, where the host needs time for a turn."""
_MARGINS, _MAX_ROOM_US = (3.0, 8.0), 20000.0
"""The device is kept busy for so many times as long as the host needs for a turn, in the first half of the rounds and
in the second, no longer than that. A host may be slower by then than when it was timed: its threads wake up late."""
_MOST_S = 10.0
"""No block is waited for longer because the first one, which a candidate can draw out, took long."""
_PACE = 2.0
"""Calls that wait for the host take longer on a machine that has become slower since they were timed: so much longer as
the reference's do now, up to this factor, may the candidate claim as well."""
_CALM_LOOKS = 4
"""How often the reference is looked at by itself; all but one must find what it claims."""
_DELAYED, _GROSS, _CALM = 0.3, 8.0, 0.5
"""Share of the time for which ranks wait for processors that others have, from which on nothing follows from times
unless they are this many times what is allowed: waiting makes calls longer by a factor, not by an order. And share of
the looks at the reference that must find nothing, or nothing follows from those at the candidate."""


@dataclass(frozen=True)
class Claim:
    """What is to be confirmed."""

    timing: Timing
    turning_us: float
    """What the host needs for a turn besides its calls."""
    copying: Copying
    bounds: Outside


def look(
    pair: Pair, claim: Claim, time_block: TimeBlock, time_reference: TimeBlock, work_beside: Callable[[], None]
) -> float:
    """Microseconds of a call. Raises FailedError if a call takes well above what the ranks claim; BusyError if the
    machine has too much other work to tell, after `work_beside` has not found that it is the candidate's.

    Not everything that slows a machine down shows in anybody's account of processors: NCCL itself did not pass while
    sixteen processes beside it began to use GPUs of the same host. So where a candidate does not pass, the reference is
    looked at in the same way, round for round; nobody doubts what that claims."""
    claimed, reference_us = claim.timing.candidate.median_us, claim.timing.reference.median_us
    ranks, sizes, copying = pair.candidate, _Sizes(claim), claim.copying
    before, began = _load(ranks), time.monotonic()
    once_us = time_block(sizes.plan(_MARGINS[0]), 0.0).wall_us
    # Of calls that are far longer than claimed a few show it, and many would look like a hang.
    few = 1 + math.ceil(_ENOUGH_US / max(1.0, once_us - sizes.around_us))
    looks = [(sizes.repeats, margin, _ROUNDS // 2) for margin in _MARGINS]
    calm, pace = list[bool](), 1.0
    for times, margin, rounds in [(few, _MARGINS[0], _FEW_ROUNDS), *looks] if few < sizes.repeats else looks:
        blocks = _Blocks(time_block, sizes.plan(margin), times, once_us, claim)
        for _ in range(rounds):
            found = blocks.more(claimed * pace)
            if found.fits and times == sizes.repeats:
                return found.us
            if times < sizes.repeats and not found.gross:
                break
            beside = _Blocks(time_reference, sizes.plan(margin, reference=True), times, once_us, claim)
            known = beside.more(reference_us)
            calm.append(known.fits)
            pace = min(_PACE, max(pace, (known.claims_us - copying.us * known.copied) / reference_us))
            if time.monotonic() > began + _ROUNDS_S:
                break
        if (times < sizes.repeats and found.gross) or time.monotonic() > began + _ROUNDS_S:
            break
    wall_s, used_s, delayed_s = (now - then for now, then in zip(_load(ranks), before, strict=True))
    waited = delayed_s > _DELAYED * wall_s and used_s < wall_s * ranks.world_size
    if (waited and not found.gross) or sum(calm) < _CALM * len(calm):
        work_beside()
        raise BusyError
    claims = "" if found.claims_us < 2 * claimed else f", and the ranks themselves claim {found.claims_us:.1f} there"
    copied = why = ""
    if found.copied:
        copied = f" where every output is copied, in up to {copying.us:.1f} us"
        why = ": work is done when somebody looks, or calls wait for the device, as they need not"
    raise FailedError(
        Verdict.integrity,
        f"the ranks claim {claimed:.1f} us a call; seen from outside a call takes {found.us:.1f} us"
        f"{copied}{claims}{why}",
    )


def calm(claim: Claim, time_reference: TimeBlock) -> bool:
    """Whether the reference passes now, when nothing is beside it."""
    sizes = _Sizes(claim)
    plan = sizes.plan(_MARGINS[0], reference=True)
    once_us = time_reference(plan, 0.0).wall_us
    rounds = [_Blocks(time_reference, plan, sizes.repeats, once_us, claim) for _ in range(_CALM_LOOKS)]
    fits = [blocks.more(claim.timing.reference.median_us).fits for blocks in rounds]
    return sum(fits) >= _CALM_LOOKS - 1


class _Sizes:
    """Of the blocks that are looked at: how many `samples`, and `repeats` in those that are to be longer."""

    def __init__(self, claim: Claim) -> None:
        timing = claim.timing
        self._turning, self._calls, self._claimed = claim.turning_us, timing.calls, timing.candidate.median_us
        host, reference = ((s.host_us or 0.0) + claim.copying.host_us for s in (timing.candidate, timing.reference))
        self._host, self._reference_host = host, max(host, reference)
        called_us = timing.calls * self._claimed
        turns = _BLOCK_US / (called_us + self._ahead_us(_MARGINS[0], host))
        self.repeats = 1 + min(math.ceil(_EXTRA_US / _LEAST_SAMPLES / called_us), max(1, int(turns / _LEAST_SAMPLES)))
        enough, room = math.ceil(_EXTRA_US / called_us / (self.repeats - 1)), int(turns / self.repeats)
        self.samples = max(_LEAST_SAMPLES, min(_MOST_SAMPLES, enough, room))

    def _ahead_us(self, margin: float, host_us: float) -> float:
        return min(_MAX_ROOM_US, 100.0 + margin * (self._calls * host_us + self._turning))

    @property
    def around_us(self) -> float:
        """What a whole block takes besides its calls."""
        return self.samples * self.repeats * (self._ahead_us(_MARGINS[0], self._host) + self._turning)

    def plan(self, margin: float, *, reference: bool = False) -> Plan:
        """Without repeats. The host stays ahead of the device, as in the blocks that count, but its room is the same in
        all turns: room that grew in those with calls would be time that nobody claims."""
        ahead = self._ahead_us(margin, self._reference_host if reference else self._host)
        return Plan(self.samples, self._calls, ahead, ahead, expected_us=self._claimed, turns=self.repeats)


@dataclass(frozen=True)
class _Found:
    us: float
    """Of a call, by our clock; with the copy of its output, if those were `copied`."""
    claims_us: float
    """The same by the ranks' in the same blocks."""
    copied: bool
    fits: bool
    """Whether that is what the ranks claimed."""
    gross: bool
    """Whether it is so much more that no waiting explains it."""


class _Blocks:
    """Blocks of `once`'s samples, with repeats and without, and of those with repeats some with every output copied."""

    def __init__(self, time_block: TimeBlock, once: Plan, repeats: int, once_us: float, claim: Claim) -> None:
        self._time_block, self._once_us, self._claim = time_block, once_us, claim
        self._once = once = replace(once, turns=repeats)
        plain = replace(once, repeats=repeats)
        copied = replace(plain, audit_chance=1.0)
        self._order = plain, once, copied, once, plain
        self._repeated = plain, copied
        self._seen: dict[Plan, list[tuple[float, float]]] = {plan: [] for plan in self._order}
        """Of each block, its time besides what the ranks claim for its calls, and what they claim for one."""
        self._extra = once.samples * once.calls * (repeats - 1)
        """Calls that a block with repeats has more than one without."""

    def more(self, claimed: float) -> _Found:
        """Some more; what fits least of those with repeats."""
        for plan in self._order:
            least_s = min(_MOST_S, 2 * plan.repeats * self._once_us / 1e6)
            block = self._time_block(replace(plan, seed=secrets.randbits(60)), least_s)
            rest_us = block.wall_us - plan.calls * plan.repeats * sum(block.slowest_us)
            self._seen[plan].append((rest_us, median(block.slowest_us)))
        # Where all fit, it is that without copies.
        found = [self._found(plan, claimed) for plan in self._repeated]
        return max(found, key=lambda one: (not one.fits, one.gross))

    def _found(self, plan: Plan, claimed: float) -> _Found:
        """The least of all blocks so far counts, as what disturbs a block only makes it longer."""
        bounds, copied = self._claim.bounds, plan.audit_chance == 1
        without, with_repeats = (min(rest for rest, _ in self._seen[kind]) for kind in (self._once, plan))
        claims = min(claims for _, claims in self._seen[plan])
        seen = claims + max(0.0, (with_repeats - without) / self._extra)
        allowed = bounds.factor * claims + bounds.turn_us / plan.calls + bounds.block_us / self._extra
        most = bounds.copied * claimed + self._claim.copying.us if copied else bounds.consistent * claimed
        return _Found(seen, claims, copied, seen <= allowed and claims <= most, seen > _GROSS * allowed)


def _load(ranks: RankSet) -> tuple[float, float, float]:
    """Seconds of wall time, that the ranks have used processors, that they have waited for one."""
    return time.monotonic(), ranks.cpu_s(), ranks.delayed_s()
