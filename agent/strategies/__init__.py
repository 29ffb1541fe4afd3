"""How a run is led, by name, one file each: before every step the loop asks its strategy what is to be said or done."""

from __future__ import annotations

from agent.strategies.base import Strategy
from agent.strategies.branch import Branch
from agent.strategies.lanes import Lanes
from agent.strategies.loop import Loop
from agent.strategies.phased import Phased
from agent.strategies.single import Single
from harness.errors import UsageError

STRATEGIES: dict[str, type[Strategy]] = {
    "single": Single,
    "loop": Loop,
    "phased": Phased,
    "lanes": Lanes,
    "branch": Branch,
}
_COUNTED: dict[str, type[Lanes] | type[Branch]] = {"lanes": Lanes, "branch": Branch}
_COUNTS = range(2, 21)


def make(text: str) -> Strategy:
    """`NAME`, or `NAME:COUNT` for lanes and seeds. Raises UsageError."""
    name, colon, count = text.partition(":")
    if name not in STRATEGIES:
        raise UsageError(f"no strategy {name!r}; there are {', '.join(STRATEGIES)}")
    if not colon:
        return STRATEGIES[name]()
    if name not in _COUNTED:
        raise UsageError(f"strategy {name} takes no number; {' and '.join(_COUNTED)} do")
    if not count.isdecimal() or int(count[:4]) not in _COUNTS:
        raise UsageError(f"{text}: say {name}:N with N from {_COUNTS[0]} to {_COUNTS[-1]}")
    return _COUNTED[name](int(count))
