"""Timing seen from the supervisor: blocks of reference and candidate in alternation, slowest rank of every sample."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.platforms import MAX_PRIME_US, Noise, Plan
from harness.types import Clocks, Latency, Ratio, Timing

_ROUND = "RCCR"  # ABBA: a drift of the machine falls on both alike
_MIN_ROUNDS, _MAX_ROUNDS = 3, 8
_TIGHT = 0.005
"""Half-width of the bootstrap interval, relative, at which more rounds are not worth their time."""
_CAP_S = 0.5
"""No further round is begun after this."""
_BLOCK_S = 0.03
_MIN_SAMPLES, _MAX_SAMPLES = 3, 50
_WARM_UP_CALLS, _WARM_UP_S = 200, 0.1
"""Each side is warm after that many calls or that long, whichever is sooner."""
_CALLS = (8, 5, 3, 2, 1)
"""How many calls a sample may have: few numbers, so that noise seldom decides. A single call that the ranks begin
together takes longer than one of eight back to back, the more so the shorter it is."""
_SAMPLE_US, _LONGEST_US, _ISSUING_US = 300.0, 3000.0, 0.8 * MAX_PRIME_US
"""What the reference's calls in a sample take at most, the slower side's, and the slower host to issue them: it would
not stay ahead of a device that is kept busy for `MAX_PRIME_US`. One call may take longer."""
_OVERHEAD_US = 150.0
"""Of a sample besides its calls and its priming: drain, flush, barrier."""
_ATTEMPTS = 3
_RESAMPLES = 400
PKB_WARM_UP, PKB_ITERATIONS = 500, 100


@dataclass(frozen=True)
class Reading:
    """What NVML said during a block."""

    sm_mhz: tuple[int, ...] = ()
    slowdowns: frozenset[str] = frozenset()
    disturbed: bool = False
    """A thermal or hardware slowdown: the block does not count."""


@dataclass(frozen=True)
class Block:
    """Times of one block: `times_us[rank][sample]`, of one call."""

    times_us: Sequence[Sequence[float]]
    host_us: Sequence[Sequence[float]] = ()
    """`host_us[rank][sample]`: issuing one call; empty where that says nothing."""
    reading: Reading = field(default_factory=Reading)
    wall_us: float = 0.0
    """From asking for it to the last rank's reply, by the supervisor's clock."""

    @property
    def slowest_us(self) -> list[float]:
        """A sample is the slowest rank's time, not the slowest rank's mean."""
        return [max(sample) for sample in zip(*self.times_us, strict=True)]

    @property
    def skew_us(self) -> list[float]:
        return [max(sample) - min(sample) for sample in zip(*self.times_us, strict=True)]

    @property
    def slowest_host_us(self) -> float | None:
        return max(median(rank) for rank in self.host_us) if all(self.host_us) and self.host_us else None


TimeBlock = Callable[[Plan], Block]
"""Times one block of one of the two sides."""


@dataclass(frozen=True)
class Alternation:
    """Blocks of both sides, timed in turn."""

    reference: list[Block]
    candidate: list[Block]
    plan: Plan
    repeated: int = 0
    """Blocks that did not count and were timed again."""

    def timing(self, noise: Noise) -> Timing:
        return summarise(self.reference, self.candidate, noise, self.plan.calls, self.repeated)


def alternate(reference: TimeBlock, candidate: TimeBlock, calls: int | None = None) -> Alternation:
    """Warm up, size the blocks by the slower side, then time both in ABBA rounds until the ratio's interval is tight.

    `calls` back to back in a sample: chosen by the length of the reference's unless given."""
    sides = {"R": reference, "C": candidate}
    plan = _plan(sides, calls)
    blocks: dict[str, list[Block]] = {"R": [], "C": []}
    began, repeated, rounds = time.monotonic(), 0, 0
    while True:
        for side in _ROUND:
            block = sides[side](plan)
            for _ in range(_ATTEMPTS - 1):
                if not block.reading.disturbed:
                    break
                block, repeated = sides[side](plan), repeated + 1
            blocks[side].append(block)
        rounds += 1
        if rounds < _MIN_ROUNDS:
            continue
        ratio = _ratio(blocks["R"], blocks["C"])
        tight = ratio.high - ratio.low <= 2 * _TIGHT * ratio.value
        if tight or rounds == _MAX_ROUNDS or time.monotonic() > began + _CAP_S:
            return Alternation(blocks["R"], blocks["C"], plan, repeated)


def alone(time_block: TimeBlock, calls: int | None = None) -> tuple[Latency, Plan]:
    """One side by itself: warm up, size the blocks, time a few."""
    plan = _plan({"R": time_block}, calls)
    return _latency([time_block(plan) for _ in range(_MIN_ROUNDS)]), plan


def _plan(sides: dict[str, TimeBlock], calls: int | None) -> Plan:
    """From the last of some warm-up blocks of each side: a candidate's processes are new, and the first calls in them
    are slow (on cpu twice as slow for a tenth of a second)."""
    first = Plan(_MIN_SAMPLES, calls or 1, prime_us=300.0)
    seen = {side: _seen(time_block(first)) for side, time_block in sides.items()}
    plan = _sized({side: (us, min(host, 300.0)) for side, (us, host) in seen.items()}, calls)
    seen = {side: _warmed_up(time_block, plan) for side, time_block in sides.items()}
    warm = _sized(seen, calls)
    if warm.calls != plan.calls:  # another number of outputs is alive at once
        seen = {side: _seen(time_block(warm)) for side, time_block in sides.items()}
        warm = _sized(seen, warm.calls)
    return warm


def _warmed_up(time_block: TimeBlock, plan: Plan) -> tuple[float, float]:
    began, calls = time.monotonic(), 0
    while calls < _WARM_UP_CALLS and (calls == 0 or time.monotonic() < began + _WARM_UP_S):
        block, calls = time_block(plan), calls + plan.samples * plan.calls
    return _seen(block)


def _seen(block: Block) -> tuple[float, float]:
    """Microseconds of a call, and those that the host needs to issue it."""
    return median(block.slowest_us), block.slowest_host_us or 0.0


def _sized(seen: dict[str, tuple[float, float]], calls: int | None) -> Plan:
    """A block of about `_BLOCK_S` on the slower side; both sides get the same.

    How many calls a sample has follows from the reference, the same for all candidates that are not much slower."""
    slower, issuing = (max(side) for side in zip(*seen.values(), strict=True))
    reference = seen["R"][0]
    bounds = ((reference, _SAMPLE_US), (slower, _LONGEST_US), (issuing, _ISSUING_US))
    count = calls or next((n for n in _CALLS if all(n * us <= most for us, most in bounds)), 1)
    # Half as much again as the host needs: a rank whose host falls behind would make all others wait for it.
    prime = min(MAX_PRIME_US, 100.0 + 1.5 * count * issuing)
    samples = int(_BLOCK_S * 1e6 / (count * slower + prime + _OVERHEAD_US))
    return Plan(max(_MIN_SAMPLES, min(_MAX_SAMPLES, samples)), count, prime, expected_us=slower)


def pkb(reference: TimeBlock, candidate: TimeBlock) -> Timing:
    """PKB's method: 500 warm-up and 100 back-to-back calls, mean per rank, slowest rank; one side after the other."""
    found = []
    for time_block in (reference, candidate):
        expected = max(time_block(Plan(PKB_WARM_UP)).slowest_us)
        block = time_block(Plan(PKB_ITERATIONS, expected_us=expected))
        means = [sum(times) / len(times) for times in block.times_us]
        found.append(_latency([block]).model_copy(update={"median_us": max(means)}))
    ratio = found[0].median_us / found[1].median_us
    return Timing(reference=found[0], candidate=found[1], speedup=Ratio(value=ratio, low=ratio, high=ratio), blocks=1)


def summarise(
    reference: list[Block], candidate: list[Block], noise: Noise, calls: int = 1, repeated: int = 0
) -> Timing:
    """Latencies, and the ratio of medians with its interval."""
    ref, cand, ratio = _latency(reference), _latency(candidate), _ratio(reference, candidate)
    if noise.only_longer:
        least = ref.min_us / cand.min_us
        ratio = ratio.model_copy(update={"low": min(ratio.low, least), "high": max(ratio.high, least)})
    more = unseen(ref, cand, noise)
    low, high = math.hypot(ratio.value / ratio.low - 1, more), math.hypot(ratio.high / ratio.value - 1, more)
    readings = [block.reading for block in (*reference, *candidate) if block.reading.sm_mhz]
    clocks = None
    if readings:
        clocks = Clocks(
            sm_mhz_low=min(min(r.sm_mhz) for r in readings),
            sm_mhz_high=max(max(r.sm_mhz) for r in readings),
            slowdowns=tuple(sorted(frozenset().union(*(r.slowdowns for r in readings)))),
            repeated_blocks=repeated,
        )
    return Timing(
        reference=ref,
        candidate=cand,
        speedup=Ratio(value=ratio.value, low=ratio.value / (1 + low), high=ratio.value * (1 + high)),
        calls=calls,
        blocks=len(candidate),
        clocks=clocks,
    )


def unseen(reference: Latency, candidate: Latency, noise: Noise) -> float:
    """What no block shows, relative: how far apart sets of processes may be that are as fast as these."""
    sides = (reference, candidate)
    # Equal sides differ by `of_host` of what either needs.
    launches = math.hypot(*(noise.of_host * (side.host_us or 0.0) / side.median_us for side in sides)) / math.sqrt(2)
    return noise.relative + noise.absolute_us / min(side.median_us for side in sides) + launches


def _ratio(reference: list[Block], candidate: list[Block]) -> Ratio:
    """Ratio of medians; its interval by bootstrap: pairs of blocks are drawn with replacement, then samples within
    each, so that both drift between blocks and noise within them count."""
    import numpy as np

    ref, cand = ([np.array(block.slowest_us) for block in blocks] for blocks in (reference, candidate))
    random = np.random.default_rng(0)  # the same samples always give the same interval

    def medians(blocks: list[Any], picks: Any) -> Any:
        """Of `_RESAMPLES` draws: the blocks `picks` (resample, block), as many samples of each as blocks have."""
        lengths = np.array([len(block) for block in blocks])
        filled = np.zeros((len(blocks), lengths.max()))
        for row, block in zip(filled, blocks, strict=True):
            row[: len(block)] = block
        uniform = random.random((*picks.shape, int(lengths.mean())))
        chosen = (uniform * lengths[picks][..., None]).astype(int)
        return np.median(filled[picks[..., None], chosen].reshape(len(picks), -1), axis=1)

    pairs = random.integers(0, len(ref), (_RESAMPLES, len(ref)))
    alone = pairs if len(cand) == len(ref) else random.integers(0, len(cand), (_RESAMPLES, len(cand)))
    low, high = (float(edge) for edge in np.percentile(medians(ref, pairs) / medians(cand, alone), [2.5, 97.5]))
    value = float(np.median(np.concatenate(ref)) / np.median(np.concatenate(cand)))
    return Ratio(value=value, low=min(low, value), high=max(high, value))


def _latency(blocks: list[Block]) -> Latency:
    ordered = sorted(sample for block in blocks for sample in block.slowest_us)
    host = [us for block in blocks if (us := block.slowest_host_us) is not None]
    return Latency(
        median_us=median(ordered),
        p10_us=ordered[int(0.1 * (len(ordered) - 1))],
        p90_us=ordered[int(0.9 * (len(ordered) - 1))],
        min_us=ordered[0],
        samples=len(ordered),
        skew_us=median([skew for block in blocks for skew in block.skew_us]),
        host_us=median(host) if host else None,
    )


def median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
