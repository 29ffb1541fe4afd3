"""What a reply costs: our own price table, kept in `prices.toml`, and what a user puts over it."""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from collections.abc import Iterator
from datetime import UTC, date, datetime
from functools import cache
from pathlib import Path

from pydantic import Field, ValidationError

from harness.errors import UsageError
from harness.types import Frozen
from runs.messages import Usage
from runs.rates import Charged, Rates, Tier

PACKAGED = Path(__file__).with_name("prices.toml")
VARIABLE = "RINGSMITH_PRICES"
_ALIASES = {"gemini": "google"}
"""LiteLLM's names of providers that have another one here."""
_SNAPSHOT = re.compile(r"[-@](\d{4}-\d{2}-\d{2}|\d{8}|\d{3})$")
"""A dated or numbered snapshot costs what its model costs: gpt-5-2025-08-07, claude-haiku-4-5-20251001."""


class Price(Rates):
    provider: str = Field(min_length=1)
    models: tuple[str, ...] = Field(min_length=1)
    """Names; one that ends with `*` is a family."""
    since: date | None = None
    """The first day of these rates; None: always."""
    tiers: tuple[Tier, ...] = ()
    checked: date | None = None
    """When the rates were read at `source`."""
    source: str | None = None
    via: str | None = None
    """Where the provider's rates were found repeated, if not on a copy of its own page."""

    def rates(self, input_tokens: int) -> Rates:
        reached = [tier for tier in self.tiers if input_tokens > tier.above]
        return max(reached, key=lambda tier: tier.above) if reached else self


class Table(Frozen):
    version: str = ""
    prices: tuple[Price, ...] = ()


def known(provider: str, model: str) -> bool:
    """Whether `cost_usd` has an answer. Raises UsageError if a user's table cannot be read."""
    return find(provider, model) is not None


def cost_usd(provider: str, model: str, usage: Usage, *, long_writes: int = 0) -> float | None:
    """None if the price is unknown. `long_writes`: how many of the cache writes are for the provider's long time."""
    price = find(provider, model)
    if price is None:
        return None
    rates = price.rates(usage.input_tokens)
    write = rates.input if rates.cache_write is None else rates.cache_write
    plain = max(0, usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens)
    return (
        plain * rates.input
        + usage.cached_tokens * (rates.input if rates.cached is None else rates.cached)
        + (usage.cache_write_tokens - long_writes) * write
        + long_writes * (write if rates.cache_write_long is None else rates.cache_write_long)
        + usage.output_tokens * rates.output
    ) / 1e6


def charged(name: str) -> Charged:
    """What a run with this model, by its full name (`openai/gpt-5`), counts with from today on."""
    provider, _, model = name.partition("/")
    price = find(provider, model)
    if price is None:
        return Charged(table=version())
    rates = Rates(**{field: getattr(price, field) for field in Rates.model_fields})
    return Charged(table=version(), rates=rates, tiers=price.tiers)


def version() -> str:
    """Of the packaged table, and behind `+` a hash of what a user put over it."""
    tables, text = _tables(_own_files())
    return f"{tables[-1].version}+{hashlib.sha256(text).hexdigest()[:8]}" if text else tables[-1].version


def find(provider: str, model: str, on: date | None = None) -> Price | None:
    """The price on a day (today). A user's table wins for every model that it names."""
    provider, today = _ALIASES.get(provider, provider), on or datetime.now(UTC).date()
    tables, _ = _tables(_own_files())
    for table in tables:
        valid = [p for p in table.prices if p.provider == provider and (p.since is None or p.since <= today)]
        fits = [(closeness, price.since or date.min, price) for price in valid if (closeness := _fit(price, model))]
        if fits:
            return max(fits, key=lambda fit: fit[:2])[2]
    return None


def _fit(price: Price, model: str) -> tuple[int, int] | None:
    """How closely the price names the model: itself, then as a snapshot, then by the longest family."""
    if model in price.models:
        return 2, 0
    base = _SNAPSHOT.sub("", model)
    if base in price.models:
        return 1, 0
    families = [len(name) for name in price.models if name.endswith("*") and model.startswith(name[:-1])]
    return (0, max(families)) if families else None


def _own_files() -> tuple[Path, ...]:
    """A user's tables, the one that wins last."""
    standing = Path.home() / ".config" / "ringsmith" / "prices.toml"
    named = os.environ.get(VARIABLE)
    return (*((standing,) if standing.is_file() else ()), *((Path(named).expanduser(),) if named else ()))


# Read once: a table that is edited during a run must not make a reply fail that is already paid for.
@cache
def _tables(own: tuple[Path, ...]) -> tuple[tuple[Table, ...], bytes]:
    """The one that wins first, the packaged one last; and the text of the user's."""
    read = [(_parsed(path, text), text) for path, text in ((path, _bytes(path)) for path in reversed(own))]
    packaged = _parsed(PACKAGED, _bytes(PACKAGED))
    return (*(table for table, _ in read), packaged), b"\0".join(text for _, text in read)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the price table {path}: {error.strerror or error}") from None


def _parsed(path: Path, text: bytes) -> Table:
    try:
        table = Table.model_validate(tomllib.loads(text.decode("utf-8")))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"the price table {path} is not TOML: {error}") from None
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(part) for part in problem["loc"])
        raise UsageError(f"the price table {path}: {place}: {problem['msg']}") from None
    if twice := _twice(table):
        raise UsageError(f"the price table {path} names {twice} twice")
    return table


def _twice(table: Table) -> str | None:
    seen: set[tuple[str, str, date | None]] = set()
    for key in _keys(table):
        if key in seen:
            return "/".join(key[:2])
        seen.add(key)
    return None


def _keys(table: Table) -> Iterator[tuple[str, str, date | None]]:
    for price in table.prices:
        for name in price.models:
            yield price.provider, name, price.since
