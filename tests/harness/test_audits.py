"""Which timed outputs are kept and which samples count, and what ranks may say of that."""

import functools
import itertools
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from harness import platforms
from harness.audits import Audits, TimedBlock, counted, samples_of
from harness.pair import FailedError
from harness.platforms import Hooks, Lottery, Plan
from harness.platforms.cpu import Cpu
from harness.timing import Timed


def drawn(plan: Plan) -> list[int]:
    """The calls that a rank keeps, in the order in which it makes them."""
    lottery, kept = Lottery(plan), []
    for sample in range(plan.samples):
        lottery.begins(sample)
        kept += [
            call
            for call in range(
                (sample * plan.turns + plan.turns - plan.repeats) * plan.calls, (sample + 1) * plan.turns * plan.calls
            )
            if lottery.keeps(call)
        ]
    assert lottery.audited == {call // plan.calls // plan.turns for call in kept}
    return kept


def test_without_a_chance_nothing_is_kept():
    assert drawn(Plan(50, 10)) == []


def test_the_last_is_kept_if_no_other_has_been():
    assert drawn(Plan(3, 2, audit_chance=1e-9)) == [5]
    assert drawn(Plan(3, 2, turns=2, repeats=2, audit_chance=1e-9)) == [11]


def test_the_share_of_kept_outputs_is_the_chance():
    assert len(drawn(Plan(50, 200, audit_chance=0.1))) == pytest.approx(1000, abs=200)


def test_first_outputs_are_kept_by_a_chance_of_their_own():
    assert drawn(Plan(3, 2, audit_chance=1e-9, first_chance=1.0)) == [0, 2, 4]
    assert drawn(Plan(3, 2, turns=4, repeats=3, audit_chance=1e-9, first_chance=1.0)) == [2, 10, 18]
    kept = drawn(Plan(10_000, 2, first_chance=0.1))
    assert len(kept) == pytest.approx(1000, abs=200) and all(call % 2 == 0 for call in kept[:-1])


def made(plan, call=lambda i: i):
    """(what changed before which call, what was kept) of a block on cpu."""
    seen, kept = [], []

    def one(i):
        seen.append(i)
        return call(i)

    hooks = Hooks(
        lambda: seen.append("align"), lambda turn: seen.append(f"turn {turn}"), take=lambda i, out: kept.append(i)
    )
    times = Cpu().time_eager(one, plan, hooks)
    assert len(times.times_us) == len(times.lead_us) == plan.samples
    return seen, kept, times


def test_calls_cannot_be_made_after_more_changes_than_there_are():
    for repeats in (0, 3):
        with pytest.raises(ValueError, match=f"{repeats} repeats of 2 turns"):
            Plan(1, turns=2, repeats=repeats)


def test_repeated_calls_have_new_inputs_and_those_without_repeats_as_many_changes():
    often, _, _ = made(Plan(2, 2, repeats=2, turns=2))
    assert often == [
        "turn 0", "align", 0, 1, "turn 1", 2, 3,
        "turn 2", "align", 4, 5, "turn 3", 6, 7,
    ]  # fmt: skip
    once, _, _ = made(Plan(2, 2, turns=2))
    assert once == ["turn 0", "turn 1", "align", 2, 3, "turn 2", "turn 3", "align", 6, 7]
    assert made(Plan(2, 1))[0] == ["turn 0", "align", 0, "turn 1", "align", 1]


@pytest.mark.parametrize("repeats", [1, 3])
def test_outputs_of_turns_are_kept_by_the_same_draw(repeats):
    plan = Plan(4, 2, repeats=repeats, turns=3, audit_chance=1e-9)
    assert made(plan)[1] == [23]  # the block's last
    _, kept, times = made(replace(plan, first_chance=1.0))
    assert kept == [2 * (3 * sample + 3 - repeats) for sample in range(4)]
    assert times.audited == [0, 1, 2, 3]
    _, kept, times = made(Plan(400, 2, repeats=repeats, turns=3, audit_chance=0.25 / 2 / repeats))
    assert len(times.audited) == pytest.approx(400 * 0.22, abs=60)
    assert {call // 6 for call in kept} == set(times.audited)


def test_changes_between_calls_are_on_no_clock():
    hooks = Hooks(lambda: None, lambda turn: time.sleep(0.02))
    times = Cpu().time_eager(lambda i: time.sleep(0.001), Plan(2, 1, repeats=4, turns=4), hooks)
    assert all(1000 <= us < 15000 for us in times.times_us)


def test_what_a_turn_was_given_is_what_its_calls_answer():
    audits = Audits(SimpleNamespace(), 12)
    block = TimedBlock("eager", Plan(2, 2, repeats=2, turns=2, seed=5), [{1}])
    audits.add(block)
    assert [audits._drawn(0, call, 0) for call in range(9)] == [False] * 4 + [True] * 4 + [False]
    assert audits._item(block, 7) == {"seed": 5, "sample": 3, "entry": 7, "captured": False}


def test_bytes_are_drawn_only_when_the_call_has_returned(monkeypatch):
    made = []
    monkeypatch.setattr(platforms, "_random_bytes", lambda count: made.append(count) or bytes(count))
    lottery = Lottery(Plan(1, 2, audit_chance=0.1))
    assert made == []
    assert lottery.keeps(0) and made == [4]


@pytest.mark.parametrize("samples", [2, 3, 40])
def test_samples_that_a_rank_has_audited_count_on_none(samples):
    times = [[float(sample) for sample in range(samples)]] * 2
    assert counted(times, Plan(samples), [{0}, {0}]) == [list(range(1, samples))] * 2
    assert counted([times[0], []], Plan(samples), [{0}, set()]) == [list(range(1, samples)), []]


def test_all_count_where_all_are_audited():
    times = [[1.0, 2.0], [3.0, 4.0]]
    assert counted(times, Plan(2), [{0}, {1}]) == times


@pytest.mark.parametrize("said", [None, 3, [2], [-1], ["0"], [0.5], {"0": 1}])
def test_audits_of_samples_that_there_are_none_of(said):
    with pytest.raises(FailedError, match="none of"):
        samples_of({"audited": said}, Plan(2, audit_chance=0.1))


def test_a_rank_that_was_not_to_draw_has_audited_nothing():
    assert samples_of({"audited": []}, Plan(2)) == set()
    assert samples_of({"audited": [0, 1]}, Plan(2, audit_chance=0.1)) == {0, 1}
    with pytest.raises(FailedError):
        samples_of({"audited": [0]}, Plan(2))


class Ranks:
    """Ranks that say of each block what `say(plan, rank)` returns, and keep those outputs."""

    world_size, alive = 2, True

    def __init__(self, say) -> None:
        self.say, self.there, self.took = say, [[], []], []

    def ask(self, op, message, deadline_s, **_):
        if op == "time":
            plan = Plan(**message["plan"])
            for rank in range(2):
                self.there[rank] += [[message["block"], call, 64] for call in self.say(plan, rank)]
            return [
                {
                    "times_us": [1e-3] * plan.samples,
                    "host_us": [],
                    "lead_us": [1.0] * plan.samples,
                    "audited": sorted({call // plan.calls for call in self.say(plan, rank)}),
                }
                for rank in range(2)
            ]
        if message == {}:
            return [{"there": there} for there in self.there]
        if isinstance(message, list):
            self.took.append([[tuple(key) for key in rank["take"]] for rank in message])
        else:
            self.there = [[], []]
        return [{"tree": None}] * 2

    def timed(self) -> Timed:
        pair = SimpleNamespace(
            candidate=self,
            box=SimpleNamespace(platform=Cpu()),
            ask=self.ask,
            judge=lambda replies, items, **_: None,
            request=SimpleNamespace(trials=2),
            limits=SimpleNamespace(call_s=1.0),
            call_deadline=lambda limit_s: limit_s,
        )
        return Timed(pair, ring=4, communicators=1)


@functools.cache
def by_chance(plan: Plan, rank: int) -> list[int]:
    return drawn(plan)


def test_no_block_and_one_of_two_samples_can_be_judged():
    ranks = Ranks(by_chance)
    timed = ranks.timed()
    timed.audits.judge()
    timed._captured = True
    timed._time("device", timed.audits.planned(Plan(2, 3), "device"), clocks=False)
    timed.audits.judge()
    assert timed.audits.done["device"] >= 1
    timed.audits.judge()


@pytest.mark.parametrize("samples", [2, 3, 50])
def test_each_rank_is_judged_by_what_it_has_drawn(samples):
    ranks = Ranks(by_chance)
    timed = ranks.timed()
    for _ in range(40):
        block = timed._time("eager", timed.audits.planned(Plan(samples, 3), "eager"), clocks=False)
        assert len(block.slowest_us) >= 1
    there = [{(block, call) for block, call, _ in rank} for rank in ranks.there]
    timed.audits.judge()
    assert timed.audits.done["eager"] >= 8
    for taken in ranks.took:
        assert taken[0] or taken[1]
        assert all(set(keys) <= own for keys, own in zip(taken, there, strict=True))


@pytest.mark.parametrize(
    ("say", "match"),
    [
        (lambda plan, rank: [], "have not kept"),
        (lambda plan, rank: [] if rank else by_chance(plan, rank), "have not kept"),
        (lambda plan, rank: [plan.samples * plan.calls - 1], "by chance they are"),
        (lambda plan, rank: [*range(plan.samples)], "by chance they are"),
    ],
)
def test_a_rank_that_draws_as_it_likes(say, match):
    timed = Ranks(say).timed()
    for _ in range(20):
        timed._time("eager", timed.audits.planned(Plan(50, 1), "eager"), clocks=False)
    with pytest.raises(FailedError, match=match):
        timed.audits.judge()


def test_outputs_of_samples_that_were_not_drawn():
    ranks = Ranks(by_chance)
    timed = ranks.timed()
    timed._time("eager", timed.audits.planned(Plan(50, 1), "eager"), clocks=False)
    spare = next(call for call in itertools.count() if [0, call, 64] not in ranks.there[0])
    ranks.there[0].append([0, spare, 64])
    with pytest.raises(FailedError, match="nobody asked for"):
        timed.audits.judge()
