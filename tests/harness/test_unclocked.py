"""Work where no clock counts it, from blocks of known times: 32 samples of four calls, every third of them copied."""

import pytest

from harness.pair import FailedError
from harness.platforms import Plan, Unclocked
from harness.unclocked import Copying, Elsewhere

ALLOWED = Unclocked(
    copying_share=0.5,
    copying_us=200.0,
    copying_us_per_mib=100.0,
    each_copy_us=5.0,
    each_copy_us_per_mib=1.0,
    before_factor=2.0,
    between_share=0.25,
    between_us=1000.0,
    most_blocks_factor=4.0,
    lead_us=100.0,
)
PLAN = Plan(samples=32, calls=4, audit_chance=0.1)
COPIED = set(range(0, 32, 3))


def seen(
    side,
    *,
    call_us=100.0,
    copy_us=20.0,
    host_copy_us=0.0,
    between_us=300.0,
    lead_us=40.0,
    busy=(),
    plan=PLAN,
    blocks=3,
    into=None,
):
    """Blocks of two ranks; `busy` samples take ten times as long, whether they are copied or not."""
    elsewhere = into or Elsewhere(ALLOWED)
    for _ in range(blocks):
        times = [
            call_us * (10 if number in busy else 1) + (copy_us / plan.calls if number in COPIED else 0.0)
            for number in range(plan.samples)
        ]
        host = [50.0 + (host_copy_us / plan.calls if number in COPIED else 0.0) for number in range(plan.samples)]
        wall_us = plan.calls * sum(times) + plan.samples * between_us
        elsewhere.add(
            side, "eager", plan, [times, times], [host, host], [COPIED, set()], [[lead_us] * plan.samples] * 2, wall_us
        )
    return elsewhere


def test_what_the_reference_takes_is_nobodys_fault():
    seen("candidate", copy_us=600.0, into=seen("reference", copy_us=500.0)).judge()
    seen("candidate", host_copy_us=600.0, copy_us=600.0, into=seen("reference", host_copy_us=500.0)).judge()
    seen("candidate", between_us=2000.0, into=seen("reference", between_us=800.0)).judge()
    seen("candidate", lead_us=180.0, into=seen("reference")).judge()


def test_work_that_is_put_off_until_somebody_copies():
    with pytest.raises(FailedError, match=r"take 400 us a sample, and 600 us more where .* copies an output"):
        seen("candidate", copy_us=600.0, into=seen("reference")).judge()


def test_what_copying_each_output_may_take():
    elsewhere = seen("reference", copy_us=20.0)
    elsewhere.taking_us = [90.0, 30.0, 8.0, 30.0]
    assert elsewhere.copying("eager", 4) == Copying(us=3 * 30.0 + 5.0, host_us=30.0)
    # A call that can be captured does not wait for the host.
    assert elsewhere.copying("device", 4) == Copying(us=5.0, host_us=30.0)
    elsewhere.taking_us = [8.0]
    assert elsewhere.copying("eager", 4) == Copying(us=2 * 20.0 + 5.0, host_us=8.0)
    elsewhere.output_bytes = 3 << 20
    assert elsewhere.copying("eager", 4).us == 2 * 20.0 + 5.0 + 3.0
    # What is longer for another reason is no copy's, and one short sample says nothing.
    assert seen("reference", copy_us=-20.0).copying("eager", 4) == Copying(us=5.0, host_us=0.0)
    assert seen("reference", copy_us=20.0, busy={1, 2, 4, 5}).copying("eager", 4).us == 2 * 20.0 + 5.0


def test_large_outputs_may_take_longer_to_copy():
    elsewhere = seen("reference")
    elsewhere.output_bytes = 4 << 20
    seen("candidate", copy_us=600.0, into=elsewhere).judge()


def test_work_between_samples():
    with pytest.raises(
        FailedError, match=r"2500 us pass from one timed sample to the next .*, with the reference 300 us"
    ):
        seen("candidate", between_us=2500.0, into=seen("reference")).judge()


def test_work_between_the_change_of_inputs_and_the_clock():
    with pytest.raises(FailedError, match=r"200 us pass from the change of .*, with the reference 40 us: work is done"):
        seen("candidate", lead_us=200.0, into=seen("reference")).judge()


def test_ranks_that_wait_for_another_one_do_not_work():
    elsewhere, times = seen("reference"), [[100.0] * 32] * 2
    for _ in range(3):
        lead = [[40.0] * 32, [900.0] * 32]
        elsewhere.add("candidate", "eager", PLAN, times, times, [COPIED, set()], lead, 32 * 700.0)
    elsewhere.judge()


def test_copies_are_not_between_samples():
    elsewhere = seen("reference", copy_us=9000.0)
    seen("candidate", copy_us=9000.0, into=elsewhere).judge()


def test_work_in_some_blocks_before_the_clock_in_the_others():
    elsewhere = seen("reference", call_us=1000.0)
    seen("candidate", call_us=1.0, between_us=4300.0, blocks=6, into=elsewhere)
    seen("candidate", call_us=1000.0, blocks=4, into=elsewhere)
    with pytest.raises(FailedError, match=r"from one timed sample to the next .*, with the reference 300 us"):
        elsewhere.judge()


def test_a_machine_that_is_busy_now_and_then_accuses_nobody():
    seen("candidate", busy=COPIED - {3}, into=seen("reference")).judge()
    elsewhere = seen("candidate", between_us=6000.0, blocks=9, into=seen("reference"))
    seen("candidate", blocks=1, into=elsewhere).judge()
    with pytest.raises(FailedError, match="6000 us pass from one timed sample to the next"):
        seen("candidate", between_us=6000.0, into=seen("reference")).judge()
    elsewhere = seen("candidate", between_us=9000.0, blocks=9, into=seen("reference"))
    with pytest.raises(FailedError, match="9000 us pass from one timed sample to the next"):
        seen("candidate", blocks=1, into=elsewhere).judge()


def test_blocks_without_copies_or_with_repeats_say_nothing():
    for plan in (Plan(samples=32, calls=4), Plan(samples=32, calls=4, turns=8, repeats=8, audit_chance=0.1)):
        seen("candidate", copy_us=6000.0, between_us=9000.0, plan=plan, into=seen("reference", plan=plan)).judge()
