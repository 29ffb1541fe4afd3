"""The supervisor's own clock against what ranks claim, with blocks that take real time."""

import os
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from harness import outside
from harness.errors import BusyError
from harness.measure import Block
from harness.outside import Claim
from harness.pair import FailedError
from harness.platforms import Outside
from harness.platforms.cpu import Cpu
from harness.stages import Run
from harness.types import Latency, Ratio, Timing, Verdict
from harness.unclocked import Copying

CLAIMED_US = 50.0


def block(unclaimed_us):
    """Of one rank that claims 50 us a call while each takes `unclaimed_us` more."""

    def time_block(plan, least_s):
        time.sleep(plan.samples * plan.calls * plan.repeats * (CLAIMED_US + unclaimed_us) / 1e6)
        return Block([[CLAIMED_US] * plan.samples], [[5.0] * plan.samples])

    return time_block


def late_block(host_us):
    """Of one rank whose host needs `host_us` to issue a call of 50 us: what its room does not cover is claimed."""

    def time_block(plan, least_s):
        called_us = max(plan.prime_us + plan.calls * CLAIMED_US, plan.calls * host_us)
        sample_us = plan.repeats * called_us + (plan.turns - plan.repeats) * plan.prime_us
        time.sleep(plan.samples * sample_us / 1e6)
        claimed_us = (called_us - plan.prime_us) / plan.calls
        return Block([[claimed_us] * plan.samples], [[host_us] * plan.samples])

    return time_block


def slower_block(us):
    """Of one rank whose calls take `us` by now, and that says so."""

    def time_block(plan, least_s):
        time.sleep(plan.samples * plan.calls * plan.repeats * us / 1e6)
        return Block([[us] * plan.samples], [[5.0] * plan.samples])

    return time_block


def clocked(time_block):
    """With the time that it really took."""

    def clocked_block(plan, least_s):
        began = time.monotonic()
        found = time_block(plan, least_s)
        return replace(found, wall_us=(time.monotonic() - began) * 1e6)

    return clocked_block


ONE = Latency(median_us=CLAIMED_US, p10_us=1, p90_us=1, min_us=1, samples=9, skew_us=0, host_us=5.0)
TIMING = Timing(candidate=ONE, reference=ONE, speedup=Ratio(value=1, low=1, high=1), calls=1, blocks=3)
COPYING = Copying(us=10.0, host_us=5.0)
BOUNDS = Outside(factor=1.25, block_us=1000.0, turn_us=10.0, consistent=1.5, copied=1.25)
CLAIM = Claim(TIMING, 1.0, COPYING, BOUNDS)


def look(candidate_us, reference_us, beside=lambda: None, candidate=None, host_us=5.0, reference=None, turning_us=1.0):
    ranks = SimpleNamespace(world_size=1, cpu_s=time.process_time, delayed_s=lambda: 0.0, pids=[os.getpid()])
    pair = SimpleNamespace(candidate=ranks)
    one = ONE.model_copy(update={"host_us": host_us})
    timing = TIMING.model_copy(update={"candidate": one, "reference": one})
    sides = candidate or block(candidate_us), reference or block(reference_us)
    return outside.look(pair, Claim(timing, turning_us, COPYING, BOUNDS), *map(clocked, sides), beside)


def test_honest_claims_are_confirmed():
    assert look(0, 1000) == pytest.approx(CLAIMED_US, rel=0.25)


@pytest.mark.parametrize("unclaimed_us", [100, 700])
def test_calls_that_are_longer_than_claimed_where_the_reference_is_not(unclaimed_us):
    with pytest.raises(FailedError, match=r"the ranks claim 50\.0 us a call; seen from outside"):
        look(unclaimed_us, 0)


@pytest.mark.parametrize("unclaimed_us", [100, 700])
def test_a_machine_on_which_the_reference_fares_the_same_tells_nothing(unclaimed_us):
    asked = []
    with pytest.raises(BusyError, match="too busy"):
        look(unclaimed_us, unclaimed_us, lambda: asked.append("beside"))
    assert asked == ["beside"]  # it may be the candidate that makes it so


def test_whether_the_reference_passes_by_itself():
    assert outside.calm(CLAIM, clocked(block(0)))
    assert not outside.calm(CLAIM, clocked(slower_block(2 * CLAIMED_US)))
    assert not outside.calm(CLAIM, clocked(block(100)))


def test_both_kinds_of_blocks_have_as_many_changes():
    """A change takes a millisecond here, and nobody's claim has it."""
    asked = set()

    def changing_block(plan, least_s):
        asked.add((plan.turns, plan.repeats))
        time.sleep(plan.samples * plan.turns / 1e3)
        return block(0)(plan, least_s)

    assert look(0, 0, candidate=changing_block) == pytest.approx(CLAIMED_US, rel=0.25)
    assert all(turns > 1 and repeats in (1, turns) for turns, repeats in asked)
    assert {turns for turns, repeats in asked if repeats > 1} == {turns for turns, _ in asked}


def busy(pair, timed, *, suspected):
    """What comes of an attempt in which the machine is too busy."""
    run = SimpleNamespace(
        _box=SimpleNamespace(platform=Cpu()), _suspected=suspected, _end_candidate=lambda pair: pair.append("ended")
    )
    found = SimpleNamespace(timing=lambda noise: TIMING)
    return Run._seen_from_outside(run, pair, timed, "eager", found)


@pytest.mark.parametrize("calm", [True, False])
def test_a_machine_that_is_busy_only_beside_the_candidate_tells_something_the_second_time(calm):
    def look(mode, timing):
        raise BusyError

    def reference_alone(mode, timing):
        assert pair == ["ended"]
        return calm

    timed = SimpleNamespace(look_from_outside=look, calm=reference_alone)
    for suspected in (False, True):
        pair = []
        kind = FailedError if calm and suspected else BusyError
        with pytest.raises(kind) as failed:
            busy(pair, timed, suspected=suspected)
        if kind is BusyError:
            assert failed.value.gone_with_candidate == calm
    if calm:
        assert failed.value.verdict is Verdict.integrity and "beside this candidate" in failed.value.summary


@pytest.mark.parametrize("host_us", [30, 350])
def test_a_host_that_is_slower_than_when_it_was_timed_is_no_claim(host_us):
    assert look(0, 0, candidate=late_block(host_us), host_us=30.0) == pytest.approx(CLAIMED_US, rel=0.25)


@pytest.mark.parametrize(("turning_us", "fewest", "most"), [(0.0, 41, 41), (400.0, 40, 41), (4000.0, 6, 8)])
def test_room_is_the_same_with_repeats_and_does_not_grow(turning_us, fewest, most):
    plans = []

    def time_block(plan, least_s):
        plans.append(plan)
        return block(0)(plan, least_s)

    look(0, 0, candidate=time_block, turning_us=turning_us)
    assert len(plans) > 3
    assert len({plan.prime_us for plan in plans}) == 1
    assert all(plan.prime_limit_us == plan.prime_us > 2 * (turning_us + 5.0) for plan in plans)
    assert all(fewest <= plan.turns <= most for plan in plans)  # where a turn takes the host long they are fewer


def test_a_machine_that_has_become_slower_lets_calls_take_longer_as_the_references_do():
    slower = slower_block(1.7 * CLAIMED_US)
    seen = look(0, 0, candidate=slower, reference=slower_block(1.4 * CLAIMED_US))
    assert seen == pytest.approx(1.7 * CLAIMED_US, rel=0.25)
    with pytest.raises(FailedError, match=r"the ranks claim 50\.0 us a call; seen from outside"):
        look(0, 0, candidate=slower)
    with pytest.raises(FailedError):
        look(0, 0, candidate=slower_block(4 * CLAIMED_US), reference=slower_block(1.4 * CLAIMED_US))


def copied_block(us, plans=None):
    """Of one rank whose calls take `us` where every output is copied."""

    def time_block(plan, least_s):
        if plans is not None:
            plans.append(plan)
        return slower_block(us if plan.audit_chance == 1 else CLAIMED_US)(plan, least_s)

    return time_block


def test_copies_of_outputs_take_their_time():
    plans = []
    seen = look(0, 0, candidate=copied_block(1.1 * CLAIMED_US + COPYING.us, plans))
    assert seen == pytest.approx(CLAIMED_US, rel=0.25)
    kinds = {(plan.repeats > 1, plan.audit_chance) for plan in plans}
    assert kinds == {(False, 0.0), (True, 0.0), (True, 1.0)}


def test_work_that_is_put_off_until_somebody_copies_is_in_all_calls_then():
    put_off = r"claim 50\.0 us a call; .* 1\d\d\.\d us where every output is copied, in up to 10\.0 us, and .*claim"
    with pytest.raises(FailedError, match=put_off):
        look(0, 0, candidate=copied_block(2.2 * CLAIMED_US + COPYING.us))
    with pytest.raises(FailedError, match=r"us where every output is copied, in up to 10\.0 us: work is done when"):
        look(0, 0, candidate=copied_block(1.5 * CLAIMED_US + COPYING.us))
    # Of the host, where the ranks' clocks stand still.
    unclaimed = block(100)
    late = lambda plan, least_s: (unclaimed if plan.audit_chance == 1 else block(0))(plan, least_s)  # noqa: E731
    with pytest.raises(FailedError, match=r"us where every output is copied"):
        look(0, 0, candidate=late)
