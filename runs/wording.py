"""Figures as a person reads them: what every page, table and terminal says alike."""

from __future__ import annotations

import time

from harness.types import Measurement
from harness.wording import ratio_text
from runs.rates import Charged, Rates


def speedups(measured: Measurement | None) -> str:
    """Every speed-up that was measured, in one line; empty for a candidate that was not timed."""
    if measured is None:
        return ""
    device = f", device {ratio_text(measured.device.speedup)}" if measured.device else ""
    return f"eager {ratio_text(measured.eager.speedup)}{device}"


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3.5 h`."""
    if abs(seconds) < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if abs(seconds) < 7200 else f"{seconds / 3600:.1f} h"


def when(at: float) -> str:
    """Unix time as local date and minute."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def charged(prices: Charged) -> str:
    """`table 2026-11-22: input 2, cached 0.2, output 12; above 200000 tokens input 4, ... USD per million tokens`."""
    if prices.rates is None:
        return f"table {prices.table}, which does not have the model"
    tiers = [f"; above {tier.above} tokens {_rates(tier)}" for tier in prices.tiers]
    return f"table {prices.table}: {_rates(prices.rates)}{''.join(tiers)} USD per million tokens"


def _rates(rates: Rates) -> str:
    given = [(name, getattr(rates, name)) for name in Rates.model_fields]
    return ", ".join(f"{name.replace('_', ' ')} {usd:g}" for name, usd in given if usd is not None)
