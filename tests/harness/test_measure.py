"""Timing as the supervisor sees it, from blocks made by hand."""

import itertools
import random

import pytest

from harness import measure, slots
from harness.measure import PKB_ITERATIONS, PKB_WARM_UP, Block, Reading, pkb
from harness.platforms import Noise

SILENT = Noise(0.0, 0.0)
BLOCKS = 6


def alternate(reference, candidate, noise=SILENT, **more):
    return measure.alternate(reference, candidate, **more).timing(noise)


def summarise(reference, candidate, noise=SILENT):
    return measure.summarise(reference, candidate, noise)


class Side:
    """A TimeBlock that answers from a function of (rank, sample) and notes what it was asked."""

    def __init__(self, name, log, us, ranks=2, host_us=None, readings=()):
        self.name, self.log, self.us, self.ranks, self.host_us = name, log, us, ranks, host_us
        self.count, self.readings = itertools.count(), iter(readings)

    def __call__(self, plan):
        self.log.append((self.name, plan))
        samples = [next(self.count) for _ in range(plan.samples)]
        times = [[self.us(rank, sample) for sample in samples] for rank in range(self.ranks)]
        host = [[self.host_us] * plan.samples for _ in range(self.ranks)] if self.host_us else [[]] * self.ranks
        return Block(times, host, next(self.readings, Reading()))


def steady(us):
    return lambda rank, call: float(us)


def test_a_sample_is_the_slowest_rank_of_one_call():
    """Ranks take turns at being slow: every call takes 30, though each rank's mean is 20."""
    block = Block([[10.0, 30.0, 10.0, 30.0], [30.0, 10.0, 30.0, 10.0]])
    assert block.slowest_us == [30.0] * 4
    assert block.skew_us == [20.0] * 4
    assert summarise([block], [block]).candidate.median_us == 30.0


def test_ranks_with_different_numbers_of_calls_are_refused():
    with pytest.raises(ValueError):
        _ = Block([[1.0, 2.0], [1.0]]).slowest_us


def test_blocks_alternate_in_abba_order_after_the_warm_up():
    log = []
    timing = alternate(Side("R", log, steady(1000)), Side("C", log, steady(500)))
    names = "".join(name for name, _ in log)
    warm_up, timed = names[:-12], names[-12:]
    assert warm_up.startswith("RCR") and warm_up.endswith("C") and "CR" not in warm_up[2:]
    assert timed == "RCCRRCCRRCCR" and timed == timed[::-1]
    assert timed.count("C") == timed.count("R") == timing.blocks == BLOCKS


def test_timed_blocks_are_alike_on_both_sides_and_sized_by_the_slower():
    log = []
    alternate(Side("R", log, steady(5000)), Side("C", log, steady(100)))
    (plan,) = {plan for _, plan in log[-12:]}
    assert (plan.samples, plan.calls, plan.expected_us) == (5, 1, 5000.0), "5 calls of 5 ms fill 30 ms"


@pytest.mark.parametrize(
    ("call_us", "samples", "calls"),
    [(0.0, 50, 8), (25, 50, 8), (38, 50, 5), (140, 50, 2), (499, 40, 1), (1000, 24, 1), (20_000, 3, 1), (1e9, 3, 1)],
)
def test_a_block_lasts_as_long_as_it_may_within_bounds(call_us, samples, calls):
    plan = measure._sized({"R": (call_us, 0.0), "C": (0.0, 0.0)}, None)
    assert (plan.samples, plan.calls) == (samples, calls)


def test_the_device_is_kept_busy_while_the_slower_host_issues_a_sample():
    log = []
    timing = alternate(Side("R", log, steady(30), host_us=20.0), Side("C", log, steady(30), host_us=80.0))
    plan = log[-1][1]
    assert plan.calls == timing.calls == 8
    assert plan.prime_us > 8 * 80.0
    assert (timing.reference.host_us, timing.candidate.host_us) == (20.0, 80.0)


def test_a_host_that_waits_for_the_device_does_not_grow_the_priming_without_end():
    log = []
    alternate(Side("R", log, steady(30), host_us=1e6), Side("C", log, steady(30)))
    assert log[-1][1].prime_us == measure.MAX_PRIME_US


@pytest.mark.parametrize(("slower_us", "calls"), [(1, 8), (370, 8), (500, 5), (40_000, 1)])
def test_the_reference_says_how_many_calls_a_sample_has(slower_us, calls):
    """Two candidates of one problem are then timed alike, unless one would take for ever."""
    assert measure._sized({"R": (30, 0.0), "C": (slower_us, 0.0)}, None).calls == calls


@pytest.mark.parametrize(("host_us", "calls"), [(400, 8), (700, 5), (2000, 2), (9000, 1)])
def test_a_sample_has_no_more_calls_than_a_host_can_issue_ahead(host_us, calls):
    plan = measure._sized({"R": (30, host_us), "C": (30, 10.0)}, None)
    assert plan.calls == calls and (plan.prime_us > 1.2 * calls * host_us or calls == 1)


def test_no_sample_has_more_calls_than_there_are_inputs_for():
    assert max(measure._CALLS) <= slots.MOST_CALLS


@pytest.mark.parametrize("slow_us", [30, 400])
def test_calls_in_a_sample_do_not_follow_from_how_slow_the_first_were(slow_us):
    log = []
    alternate(Side("R", log, lambda rank, call: slow_us if call < 3 else 30), Side("C", log, steady(30)))
    assert {plan.calls for _, plan in log[-12:]} == {8}
    before = log[-13][1]
    assert before.calls == 8, "nor are they the first of their number"


def test_calls_per_sample_can_be_given():
    log = []
    alternate(Side("R", log, steady(30)), Side("C", log, steady(30)), calls=4)
    assert {plan.calls for _, plan in log} == {4}


def test_a_slow_first_call_does_not_size_the_blocks():
    """Lazy initialisation in the first call of all; the second warm-up block is what counts."""
    log = []
    alternate(Side("R", log, lambda rank, call: 1e6 if call < 3 else 500.0), Side("C", log, steady(500)))
    assert [plan.samples for _, plan in log][:4] == [3, 3, 3, 3], "sized by the slow ones"
    (plan,) = {plan for _, plan in log[-12:]}
    assert plan.expected_us == 500.0 and plan.samples == 40


def test_more_rounds_are_made_until_the_interval_is_tight():
    def blocks(spread):
        return alternate(Side("R", [], noisy(300, 1, spread)), Side("C", [], noisy(300, 2, spread))).blocks

    assert blocks(0.01) == BLOCKS
    assert BLOCKS < blocks(0.9) <= 16


def test_a_block_in_which_a_gpu_was_throttled_is_timed_again():
    hot = Reading((1200,), frozenset({"thermal (hardware)"}), disturbed=True)
    cool, capped = Reading((1900,)), Reading((1800,), frozenset({"power cap"}))
    log = []
    alternate(Side("R", log, steady(1000)), Side("C", [], steady(1000)))
    warm = len(log) - BLOCKS
    log.clear()
    reference = Side("R", log, steady(1000), readings=[*[cool] * warm, hot, hot, capped, *[cool] * 20])
    timing = alternate(reference, Side("C", log, steady(1000), readings=[cool] * 20))
    assert "".join(name for name, _ in log)[-14:] == "RRRCCRRCCRRCCR"
    assert timing.clocks.repeated_blocks == 2
    assert (timing.clocks.sm_mhz_low, timing.clocks.sm_mhz_high) == (1800, 1900)
    assert timing.clocks.slowdowns == ("power cap",)


def test_a_gpu_that_stays_throttled_is_reported_and_does_not_hold_the_timing_up():
    hot = Reading((1200,), frozenset({"hardware slowdown"}), disturbed=True)
    log = []
    timing = alternate(Side("R", log, steady(1000), readings=[hot] * 90), Side("C", log, steady(1000)))
    assert timing.clocks.slowdowns == ("hardware slowdown",)
    assert timing.clocks.repeated_blocks == 12 and timing.blocks == BLOCKS


def test_the_interval_is_widened_by_what_no_block_shows():
    """Two sets of processes that run the same code differ, however steady each is."""
    ratio = alternate(Side("R", [], steady(30)), Side("C", [], steady(20)), Noise(0.01, 0.2)).speedup
    assert ratio.value == 1.5
    assert ratio.low == pytest.approx(1.5 / 1.02) and ratio.high == pytest.approx(1.5 * 1.02)


def test_the_interval_is_widened_by_what_launches_cost():
    """Of a side that is many launches its own share; a figure without launches is not widened."""

    def side(us, *host_us):
        return [Block([[us] * 9], [[host] * 9 for host in host_us]) for _ in range(BLOCKS)]

    noise = Noise(0.01, 0.2, of_host=0.1)
    alike = summarise(side(20.0, 20.0), side(20.0, 20.0), noise).speedup
    assert alike.high == pytest.approx(1.12)
    one = summarise(side(20.0, 20.0), side(20.0, 1e-9), noise).speedup
    assert one.high == pytest.approx(1.02 + 0.1 / 2**0.5)
    assert summarise(side(20.0), side(20.0), noise).speedup.high == pytest.approx(1.02)


def test_where_other_work_makes_calls_longer_the_least_times_count_as_well():
    """The reference waits for a processor in nine samples of ten; without that both sides are alike."""
    reference = [Block([[20.0 + 80 * (i % 10 > 0) for i in range(40)]]) for _ in range(BLOCKS)]
    candidate = [Block([[20.0] * 40]) for _ in range(BLOCKS)]
    assert summarise(reference, candidate).speedup.low == pytest.approx(5)
    busy = summarise(reference, candidate, Noise(0.0, 0.0, only_longer=True)).speedup
    assert (busy.value, busy.low, busy.high) == pytest.approx((5, 1, 5))


def noisy(us, seed, spread=0.1):
    draw = random.Random(seed)
    return lambda rank, call: us * (1 + spread * draw.random())


def test_the_ratio_is_of_medians_and_its_interval_contains_it():
    timing = alternate(Side("R", [], noisy(300, 1)), Side("C", [], noisy(200, 2)))
    ratio = timing.speedup
    assert ratio.value == pytest.approx(timing.reference.median_us / timing.candidate.median_us)
    assert ratio.low <= ratio.value <= ratio.high
    assert 1.4 < ratio.low < ratio.high < 1.6


@pytest.mark.parametrize("seed", range(10))
def test_the_interval_contains_the_value_even_of_wild_samples(seed):
    draw = random.Random(seed)
    wild = lambda: [Block([[draw.lognormvariate(5, 2) for _ in range(3)] for _ in range(2)]) for _ in range(BLOCKS)]  # noqa: E731
    ratio = summarise(wild(), wild()).speedup
    assert ratio.low <= ratio.value <= ratio.high


def test_the_interval_is_narrow_for_steady_sides_and_wide_for_wild_ones():
    def width(spread):
        ratio = alternate(Side("R", [], noisy(300, 1, spread)), Side("C", [], noisy(300, 2, spread))).speedup
        return ratio.high - ratio.low

    assert width(0.0) == 0.0
    assert 0 < width(0.05) < width(1.0)


def test_equal_sides_include_one_and_a_drift_of_the_machine_cancels():
    """Both sides slow down by half over the session: one after the other would see it as a difference."""
    clock = itertools.count()
    drift = lambda rank, call: 1000.0 + next(clock)  # noqa: E731
    ratio = alternate(Side("R", [], drift, ranks=1), Side("C", [], drift, ranks=1)).speedup
    assert ratio.value == pytest.approx(1.0, abs=0.02)
    assert ratio.low < 1.0 < ratio.high


def test_the_same_samples_give_the_same_result():
    blocks = [Block([[random.Random(b).random() * 100 for _ in range(20)]]) for b in range(BLOCKS)]
    assert summarise(blocks, blocks[::-1]) == summarise(blocks, blocks[::-1])


def test_latency_describes_the_samples():
    times = [float(t) for t in range(1, 102)]
    timing = summarise([Block([times, [t + 4 for t in times]])], [Block([times[::-1]])])
    latency = timing.reference
    assert (latency.median_us, latency.min_us, latency.samples, latency.skew_us) == (55.0, 5.0, 101, 4.0)
    assert (latency.p10_us, latency.p90_us) == (15.0, 95.0)
    assert (timing.candidate.median_us, timing.candidate.skew_us) == (51.0, 0.0)


def test_pkb_takes_the_mean_per_rank_of_the_slowest_rank():
    """Ranks take turns at being slow: PKB's figure is 20 where the per-call maximum is 30."""
    log = []
    turns = lambda rank, call: 30.0 if (call + rank) % 2 else 10.0  # noqa: E731
    timing = pkb(Side("R", log, lambda rank, call: 40.0 + rank), Side("C", log, turns))
    assert [(name, plan.samples) for name, plan in log] == [
        ("R", PKB_WARM_UP),
        ("R", PKB_ITERATIONS),
        ("C", PKB_WARM_UP),
        ("C", PKB_ITERATIONS),
    ]
    assert (PKB_WARM_UP, PKB_ITERATIONS) == (500, 100)
    assert timing.candidate.median_us == 20.0
    assert timing.reference.median_us == 41.0
    assert timing.candidate.samples == PKB_ITERATIONS
    ratio = timing.speedup
    assert ratio.value == ratio.low == ratio.high == pytest.approx(41 / 20)


def test_pkb_does_not_count_the_warm_up():
    timing = pkb(Side("R", [], lambda rank, call: 1e6 if call < PKB_WARM_UP else 10.0), Side("C", [], steady(5)))
    assert timing.speedup.value == 2.0
