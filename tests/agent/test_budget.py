import pytest

from agent.budget import TOOL_DIMENSIONS, Meter
from runs.events import Budget, Spend
from runs.messages import Turn, Usage

TURN = Turn(usage=Usage(input_tokens=900, cached_tokens=600, output_tokens=100), cost_usd=0.25)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def used(budget: Budget) -> Meter:
    """After two replies, 30 s and 8 device-seconds."""
    clock = Clock()
    meter = Meter(budget, clock)
    meter.add_turn(TURN)
    meter.add_turn(TURN)
    meter.add_use(8.0)
    clock.now += 30.0
    return meter


def test_spend() -> None:
    assert used(Budget()).spend == Spend(
        steps=2, tokens=2000, input_tokens=1800, cached_tokens=1200, usd=0.5, wall_s=30.0, device_s=8.0
    )


@pytest.mark.parametrize(
    ("limit", "over"),
    [
        ({"steps": 2}, "steps"),
        ({"steps": 3}, None),
        ({"tokens": 2000}, "tokens"),
        ({"usd": 0.5}, "usd"),
        ({"usd": 0.51}, None),
        ({"wall_s": 30.0}, "wall_s"),
        ({"device_s": 8.0}, "device_s"),
        ({"device_s": 8.5}, None),
        ({}, None),
    ],
)
def test_over(limit: dict[str, float], over: str | None) -> None:
    meter = used(Budget.model_validate({"steps": None, **limit}))
    assert meter.over() == over
    assert meter.over(TOOL_DIMENSIONS) == (over if over in TOOL_DIMENSIONS else None)


def test_waiting_for_a_rate_limit_is_not_working_time() -> None:
    clock = Clock()
    meter = Meter(Budget(wall_s=100.0), clock)
    clock.now += 150.0
    meter.add_turn(Turn(cost_usd=0.0, waited_s=90.0))
    assert (meter.spend.wall_s, meter.spend.waited_s) == (60.0, 90.0)
    assert meter.over() is None and "40 of 100 s" in meter.remaining()
    clock.now += 40.0
    assert meter.over() == meter.over(TOOL_DIMENSIONS) == "wall_s"
    meter.add_turn(Turn(cost_usd=0.0, waited_s=5.0))
    assert (meter.spend.wall_s, meter.spend.waited_s) == (95.0, 95.0)


def test_working_time_is_never_negative() -> None:
    """An injected sleep does not move the clock."""
    meter = Meter(Budget(wall_s=1.0), Clock())
    meter.add_turn(Turn(waited_s=60.0))
    assert meter.spend.wall_s == 0.0


def test_a_reply_without_price_exhausts_a_usd_limit() -> None:
    meter = Meter(Budget(usd=100.0), Clock())
    meter.add_turn(Turn(cost_usd=None))
    assert meter.over() == "usd"


def test_remaining_names_every_limit_that_there_is() -> None:
    budget = Budget(steps=20, tokens=1500, usd=2.0, wall_s=600.0, device_s=100.0)
    assert used(budget).remaining() == (
        "Budget left: 18 of 20 replies, 0 of 1500 tokens, 1.50 of 2.00 USD, 570 of 600 s wall time, "
        "92 of 100 device-seconds."
    )
    assert used(Budget(steps=20)).remaining(steps="tool calls") == "Budget left: 18 of 20 tool calls."
    assert used(Budget(steps=None)).remaining() == "Budget left: no limit."
