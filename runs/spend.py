"""How a budget is used up: the one place where replies, device time and waits are added."""

from __future__ import annotations

from collections.abc import Iterable

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


def add_use(spend: Spend, device_s: float, waited_s: float) -> Spend:
    """Of a tool call or an official evaluation."""
    return spend.model_copy(update={"device_s": spend.device_s + device_s, "waited_s": spend.waited_s + waited_s})


def at_wall(spend: Spend, elapsed_s: float) -> Spend:
    """`elapsed_s` since the run began, waiting included."""
    return spend.model_copy(update={"wall_s": max(0.0, elapsed_s - spend.waited_s)})


def total(spends: Iterable[Spend]) -> Spend:
    """Of several runs. Working time is added up too, although they may have been at work at the same time."""
    added = {name: type(field.default)() for name, field in _SUMS.items()}
    known = True
    for spend in spends:
        known &= spend.usd_known
        for name in added:
            added[name] += getattr(spend, name)
    return Spend(usd_known=known, **added)


def since(spend: Spend, before: Spend) -> Spend:
    """What has been added to `before`."""
    more = {name: getattr(spend, name) - getattr(before, name) for name in _SUMS}
    return Spend(usd_known=spend.usd_known or not before.usd_known, **more)


_SUMS = {name: field for name, field in Spend.model_fields.items() if name != "usd_known"}
