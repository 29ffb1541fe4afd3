"""Timing seen from the supervisor: blocks of reference and candidate in alternation, maximum over ranks per call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.types import Latency, Ratio, Timing

_ORDER = "RCCRRCCRRCCR"  # ABBA: a drift of the machine falls on both alike
BLOCKS = _ORDER.count("C")
_BLOCK_S = 0.05
_MIN_ITERATIONS, _MAX_ITERATIONS = 3, 100
_RESAMPLES = 400
PKB_WARM_UP, PKB_ITERATIONS = 500, 100


@dataclass(frozen=True)
class Block:
    """Times of one block: `times_us[rank][call]`."""

    times_us: Sequence[Sequence[float]]

    @property
    def slowest_us(self) -> list[float]:
        """A sample is the slowest rank's time of one call, not the slowest rank's mean."""
        return [max(call) for call in zip(*self.times_us, strict=True)]

    @property
    def skew_us(self) -> list[float]:
        return [max(call) - min(call) for call in zip(*self.times_us, strict=True)]


TimeBlock = Callable[[int, float], Block]
"""`(iterations, expected_us) -> Block` for one of the two sides."""


def alternate(reference: TimeBlock, candidate: TimeBlock) -> Timing:
    """Warm up, size the blocks by the slower side, then time both in ABBA order."""
    sides = {"R": reference, "C": candidate}
    expected = {}
    for side, time_block in sides.items():
        first = max(time_block(_MIN_ITERATIONS, 0.0).slowest_us)
        # The second warm-up block lasts about as long as a timed one: clocks and caches are as they will be.
        expected[side] = _median(time_block(_iterations(first), first).slowest_us)
    iterations = _iterations(max(expected.values()))
    blocks: dict[str, list[Block]] = {"R": [], "C": []}
    for side in _ORDER:
        blocks[side].append(sides[side](iterations, expected[side]))
    return summarise(blocks["R"], blocks["C"])


def pkb(reference: TimeBlock, candidate: TimeBlock) -> Timing:
    """PKB's method: 500 warm-up and 100 back-to-back calls, mean per rank, slowest rank; one side after the other."""
    found = []
    for time_block in (reference, candidate):
        expected = max(time_block(PKB_WARM_UP, 0.0).slowest_us)
        block = time_block(PKB_ITERATIONS, expected)
        means = [sum(times) / len(times) for times in block.times_us]
        samples = block.slowest_us
        found.append(_latency(samples, block.skew_us).model_copy(update={"median_us": max(means)}))
    ratio = found[0].median_us / found[1].median_us
    return Timing(reference=found[0], candidate=found[1], speedup=Ratio(value=ratio, low=ratio, high=ratio))


def _iterations(call_us: float) -> int:
    return max(_MIN_ITERATIONS, min(_MAX_ITERATIONS, int(_BLOCK_S * 1e6 / max(call_us, 1.0))))


def summarise(reference: list[Block], candidate: list[Block]) -> Timing:
    """Latencies and ratio of medians with a bootstrap interval: pairs of blocks are drawn with replacement, then
    samples within each, so that both drift between blocks and noise within them count."""
    import numpy as np

    ref = [np.array(b.slowest_us) for b in reference]
    cand = [np.array(b.slowest_us) for b in candidate]
    random = np.random.default_rng(0)  # the same samples always give the same interval
    ratios = []
    for _ in range(_RESAMPLES):
        pairs = random.integers(0, len(ref), len(ref))
        draw = lambda blocks, pairs=pairs: np.concatenate(  # noqa: E731
            [random.choice(blocks[i], len(blocks[i])) for i in pairs]
        )
        ratios.append(np.median(draw(ref)) / np.median(draw(cand)))
    low, high = np.percentile(ratios, [2.5, 97.5])
    value = np.median(np.concatenate(ref)) / np.median(np.concatenate(cand))
    return Timing(
        reference=_latency(np.concatenate(ref).tolist(), [s for b in reference for s in b.skew_us]),
        candidate=_latency(np.concatenate(cand).tolist(), [s for b in candidate for s in b.skew_us]),
        speedup=Ratio(value=float(value), low=min(float(low), float(value)), high=max(float(high), float(value))),
    )


def _latency(samples: list[float], skews: list[float]) -> Latency:
    ordered = sorted(samples)
    return Latency(
        median_us=_median(ordered),
        p10_us=ordered[int(0.1 * (len(ordered) - 1))],
        p90_us=ordered[int(0.9 * (len(ordered) - 1))],
        min_us=ordered[0],
        samples=len(ordered),
        skew_us=_median(skews),
    )


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
