"""What a model costs, as a price table and a record say it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from harness.types import Frozen

_Usd = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class Rates(Frozen):
    """USD per million tokens. What is left out costs as the line above it."""

    input: _Usd
    cached: _Usd | None = None
    """Input that was read from a cache."""
    cache_write: _Usd | None = None
    """Input that was written to a cache for the provider's usual time (Anthropic: 5 minutes). Left out: as input."""
    cache_write_long: _Usd | None = None
    """The same for the provider's long time (Anthropic: 1 hour)."""
    output: _Usd
    """Reasoning included."""


class Tier(Rates):
    """The rates of a whole request whose input, cached or not, has more than `above` tokens."""

    above: int = Field(gt=0)


class Charged(Frozen):
    """The prices that a run counts with."""

    table: str
    """Version of the price table."""
    rates: Rates | None = None
    """None: the table has none for this model. LiteLLM may have."""
    tiers: tuple[Tier, ...] = ()
