"""How many sets of inputs repeated calls go round, and how many copies of each. Imports no torch.

A rank's inputs are drawn into slots; a ring is made of the slots and of copies of them (`ring.Ring`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

MOST_CALLS = 10
"""Of a burst or a timed sample."""
MANY, FEW = 4, 2
"""Distinct input sets that repeated calls go round; fewer where they are larger than any cache."""
LARGE_BYTES = 64 << 20
"""From here on one rank's inputs are."""


def number(input_bytes: int) -> int:
    """Of slots, for inputs of so many bytes on each rank."""
    return MANY if input_bytes < LARGE_BYTES else FEW


def copies(slots: int, writes: bool) -> int:
    """Entries of the ring for each slot. `writes`: calls may write into their arguments."""
    # As many in all as a sample or a burst has calls: each finds its inputs in memory and not in a cache, and as given.
    return math.ceil(MOST_CALLS / slots) if slots == MANY or writes else 1


def exchange(replies: Sequence[dict[str, Any]]) -> str:
    """`ring.Exchanging`, from what the reference's ranks say of their slots. All exchange contents or none does, as
    what they send each other must fit."""
    if not all(reply["fit"] for reply in replies):
        return "never"
    return "always" if all(reply["alike"] for reply in replies) else "eager"
