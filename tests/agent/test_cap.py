"""Limits that several runs share: whole runs in threads, and what requests under way hold."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from agent.budget import Meter
from agent.cap import Cap, Estimate
from agent.loop import run_loop
from agent.models.bounds import LEAST_OUTPUT, MOST_OUTPUT, Bounds
from harness.allowance import Allowance
from harness.errors import BudgetEndedError, UsageError
from runs.events import Budget, Spend
from runs.fold import Run
from runs.messages import Turn, Usage
from runs.record import Record
from runs.spend import since, total
from tests.agent.test_loop import BENCH, MESSAGES, FakeSession, Scripted, Toolbox, say, speed, write
from tests.runs.factories import config

USD_PER_TOKEN = 1e-3
RUNS = 8


def cost_usd(usage: Usage) -> float:
    return (usage.input_tokens + usage.output_tokens) * USD_PER_TOKEN


class Writer:
    """Replies of half the tokens that it may use, all at once with others where there are any."""

    name = "writer"

    def __init__(self, barrier: threading.Barrier | None = None) -> None:
        self.barrier, self.bounds = barrier, []

    def priced(self) -> bool:
        return True

    cost_usd = staticmethod(cost_usd)

    def reply(self, messages: Any, tools: Any, bounds: Bounds) -> Turn:
        self.bounds.append(bounds.output_tokens)
        usage = Usage(input_tokens=bounds.expected.input_tokens, output_tokens=bounds.output_tokens // 2)
        return say(write("a"), BENCH, usage=usage, cost_usd=cost_usd(usage))


def run_in_threads(tmp_path: Path, cap: Cap, models: list[Any], **changed: Any) -> list[Run]:
    runs: list[Run] = []

    def work(number: int) -> None:
        with Record.create(tmp_path, f"run-{number}") as record:
            session = FakeSession({"a": [speed("a", 1.5)]})
            settings = config(budget=Budget(**{"steps": None, **changed}))
            run = run_loop(
                settings, models[number], session, record, MESSAGES, lambda event: None,
                prompts_hash="h", toolbox=Toolbox(), cap=cap,
            )  # fmt: skip
            runs.append(run)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(models))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(runs) == len(models)
    return runs


@pytest.mark.parametrize(
    ("limits", "reason"),
    [({"usd": 200.0}, "budget: sweep usd"), ({"tokens": 200_000}, "budget: sweep tokens")],
)
def test_runs_together_stay_below_a_limit(tmp_path: Path, limits: dict[str, Any], reason: str) -> None:
    spent = Spend(usd=20.0, tokens=20_000)
    cap = Cap(**limits, spent=spent)
    models = [Writer() for _ in range(RUNS)]
    runs = run_in_threads(tmp_path, cap, models)
    assert {run.reason for run in runs} == {reason}
    assert all(run.official is not None for run in runs if run.spend.steps), "its best is graded all the same"
    (name, limit) = next(iter(limits.items()))
    used = getattr(total([spent, *(run.spend for run in runs)]), name)
    assert 0.8 * limit < used <= limit, "used up as far as one more request does not fit, and not passed"
    assert getattr(cap.spend, name) == pytest.approx(used)


def test_a_run_stops_by_whichever_limit_is_first(tmp_path: Path) -> None:
    (run,) = run_in_threads(tmp_path, Cap(usd=1e6), [Writer()], usd=10.0)
    assert run.reason == "budget: usd"
    (run,) = run_in_threads(tmp_path / "other", Cap(usd=10.0), [Writer()], usd=1e6)
    assert run.reason == "budget: sweep usd"


def test_device_time_of_all_runs(tmp_path: Path) -> None:
    """Two device-seconds an evaluation, one a step."""
    turns = [[say(write("a"), BENCH) for _ in range(20)] for _ in range(4)]
    cap = Cap(device_s=30.0)
    runs = run_in_threads(tmp_path, cap, [Scripted(t) for t in turns])
    assert {run.reason for run in runs} == {"budget: sweep device_s"}
    # The last calls under way are each bounded by themselves; the official evaluations come on top.
    assert 30.0 <= cap.spend.device_s <= 30.0 + 4 * 2.0 + 4 * 2.0


def test_a_limit_that_was_used_up_before(tmp_path: Path) -> None:
    cap = Cap(wall_s=100.0, spent=Spend(wall_s=100.0))
    model = Writer()
    (run,) = run_in_threads(tmp_path, cap, [model])
    assert (run.reason, run.spend.steps, model.bounds) == ("budget: sweep wall_s", 0, [])


def test_a_cap_in_usd_needs_a_price(tmp_path: Path) -> None:
    with Record.create(tmp_path, "r") as record, pytest.raises(UsageError, match="price of scripted is unknown"):
        run_loop(
            config(), Scripted([], known_price=False), FakeSession(), record, MESSAGES, lambda event: None,
            prompts_hash="h", toolbox=Toolbox(), cap=Cap(usd=1.0),
        )  # fmt: skip


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def joined(meter: Meter) -> Meter:
    meter.join()
    return meter


def test_working_time_counts_while_it_passes_and_no_longer_than_the_run() -> None:
    clock, cap = Clock(), Cap(wall_s=100.0, spent=Spend(wall_s=10.0))
    one, other = (joined(Meter(Budget(), clock, cap=cap)) for _ in range(2))
    use = one.call()
    clock.now += 40.0
    assert cap.spend.wall_s == 90.0 and use.over() is None
    other.close()
    clock.now += 20.0
    assert cap.spend.wall_s == 110.0
    assert use.over() == other.over() == "sweep wall_s"
    one.close()
    clock.now += 1000.0
    assert cap.spend.wall_s == 110.0


def test_only_what_a_resumed_run_adds_counts() -> None:
    clock, cap = Clock(), Cap(tokens=1000, spent=Spend(tokens=500))
    meter = joined(Meter(Budget(), clock, Spend(tokens=400, steps=2, usd_known=False), cap))
    meter.add_turn(Turn(usage=Usage(input_tokens=40), cost_usd=0.5))
    assert (cap.spend.tokens, cap.spend.usd, cap.spend.usd_known, meter.spend.tokens) == (540, 0.5, True, 440)


def test_a_reply_without_its_price_exhausts_it() -> None:
    meter = joined(Meter(Budget(), Clock(), cap=Cap(usd=1.0)))
    meter.add_turn(Turn(cost_usd=None))
    assert meter.over() == "sweep usd"


def test_a_request_waits_for_what_others_hold() -> None:
    cap, one, other = Cap(tokens=LEAST_OUTPUT * 2), object(), object()
    for run in (one, other):
        cap.join(run, Spend)
    estimate, use = Estimate(Usage(input_tokens=100)), Allowance()
    granted, _ = cap.hold(one, estimate, float("inf"), Allowance())
    assert granted == LEAST_OUTPUT
    answers: list[float] = []
    waiting = threading.Thread(target=lambda: answers.append(cap.hold(other, estimate, float("inf"), use)[0]))
    waiting.start()
    while not use.waited_s:
        pass
    assert answers == []
    cap.release(one)
    waiting.join(30)
    assert answers == [LEAST_OUTPUT] and use.waited_s > 0
    assert cap.hold(one, Estimate(Usage(input_tokens=LEAST_OUTPUT + 1)), 1e9, Allowance())[0] < LEAST_OUTPUT, "never"


def test_a_run_alone_gets_all_and_a_grant_is_never_longer_than_a_reply() -> None:
    cap, run = Cap(usd=50.0), object()
    cap.join(run, Spend)
    cheap, dear = Estimate(Usage(), 0.0, 1e-6), Estimate(Usage(), 1.0, 0.01)
    assert cap.hold(run, cheap, float("inf"), Allowance())[0] == MOST_OUTPUT
    cap.release(run)
    assert cap.hold(run, dear, float("inf"), Allowance()) == (4900.0, "usd")
    cap.release(run)
    assert cap.hold(run, Estimate(Usage(), 0.0, 0.0), float("inf"), Allowance())[0] == float("inf"), "costs nothing"


def test_an_input_that_is_too_dear_is_not_sent() -> None:
    meter = Meter(Budget(usd=10.0), Clock())
    with pytest.raises(BudgetEndedError) as ended:
        meter.request(Usage(input_tokens=9_000), cost_usd)
    assert ended.value.limit == "usd"
    assert meter.request(Usage(input_tokens=7_000), cost_usd).output_tokens == 3_000
    assert Meter(Budget(), Clock()).request(Usage(input_tokens=7_000), cost_usd).output_tokens is None


def test_sums_of_spends() -> None:
    a = Spend(steps=1, tokens=2, usd=0.5, wall_s=3.0, device_s=4.0, waited_s=5.0)
    b = Spend(steps=10, usd_known=False)
    both = total([a, b])
    assert (both.steps, both.usd, both.usd_known, both.waited_s) == (11, 0.5, False, 5.0)
    assert since(both, b) == a
    assert total([]) == Spend()
