"""How a budget is used up: the one place where replies and device time are added."""

from __future__ import annotations

from runs.events import Spend
from runs.messages import Turn


def add_turn(spend: Spend, turn: Turn) -> Spend:
    return spend.model_copy(
        update={
            "steps": spend.steps + 1,
            "tokens": spend.tokens + turn.usage.input_tokens + turn.usage.output_tokens,
            "input_tokens": spend.input_tokens + turn.usage.input_tokens,
            "cached_tokens": spend.cached_tokens + turn.usage.cached_tokens,
            "usd": spend.usd + (turn.cost_usd or 0.0),
            "usd_known": spend.usd_known and turn.cost_usd is not None,
            "waited_s": spend.waited_s + turn.waited_s,
        }
    )


def add_call(spend: Spend) -> Spend:
    """A step of an agent that comes from outside: what its thinking costs is not known here."""
    return spend.model_copy(update={"steps": spend.steps + 1, "usd_known": False})


def at_wall(spend: Spend, elapsed_s: float) -> Spend:
    """`elapsed_s` since the run began, waiting included."""
    return spend.model_copy(update={"wall_s": max(0.0, elapsed_s - spend.waited_s)})


def add_device(spend: Spend, device_s: float) -> Spend:
    return spend.model_copy(update={"device_s": spend.device_s + device_s})
