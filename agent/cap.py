"""Limits that several runs of one process share, each in a thread of its own: those of a sweep."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from agent.models.bounds import LEAST_OUTPUT, MOST_OUTPUT
from harness.allowance import Allowance
from runs.events import Budget, Spend
from runs.messages import Usage
from runs.spend import total


@dataclass(frozen=True)
class Estimate:
    """What the next request will cost."""

    input: Usage
    input_usd: float = 0.0
    output_usd: float = 0.0
    """Of one token."""

    def fitting(self, left: dict[str, float]) -> tuple[float, str]:
        """How many output tokens fit into what is left of `tokens` and `usd` (infinity if neither is limited), and the
        dimension that says so."""
        fit, narrowest = float("inf"), ""
        if "tokens" in left:
            fit, narrowest = left["tokens"] - self.input.input_tokens, "tokens"
        if "usd" in left:
            usd = left["usd"] - self.input_usd
            by_usd = usd / self.output_usd if self.output_usd > 0 else float("inf") if usd >= 0 else 0.0
            if by_usd < fit:
                fit, narrowest = by_usd, "usd"
        return fit, narrowest

    def of(self, output_tokens: float) -> dict[str, float]:
        return {
            "tokens": self.input.input_tokens + output_tokens,
            "usd": self.input_usd + output_tokens * self.output_usd,
        }


class Cap:
    """Thread-safe. What its runs spend counts while they spend it; requests under way hold what they may come to, so
    that together they cannot pass a limit in USD or tokens (but for estimates of their input)."""

    def __init__(
        self,
        *,
        tokens: int | None = None,
        usd: float | None = None,
        wall_s: float | None = None,
        device_s: float | None = None,
        spent: Spend | None = None,
    ) -> None:
        """`wall_s` is the working time of all runs added up, as the others are sums. `spent` is what runs of earlier
        processes have used, of a run that is resumed too (`runs.spend.total` adds them up)."""
        self.limits = Budget(steps=None, tokens=tokens, usd=usd, wall_s=wall_s, device_s=device_s)
        self._settled = spent or Spend()
        self._runs: dict[object, Callable[[], Spend]] = {}
        self._held: dict[object, dict[str, float]] = {}
        """What a run's request under way may come to."""
        self._changed = threading.Condition()

    def join(self, run: object, spend: Callable[[], Spend]) -> None:
        """`spend` says at any time, from any thread, what the run has used under this cap."""
        with self._changed:
            self._runs[run] = spend

    def leave(self, run: object) -> None:
        """The run uses no more. Safe to call twice."""
        with self._changed:
            if (spend := self._runs.pop(run, None)) is not None:
                self._settled = total((self._settled, spend()))
            self._release(run)

    @property
    def spend(self) -> Spend:
        """Of all runs, until now."""
        with self._changed:
            return total((self._settled, *(spend() for spend in self._runs.values())))

    def over(self, dimensions: tuple[str, ...]) -> str | None:
        """The first exhausted dimension, or None."""
        return exhausted(self.limits, self.spend, dimensions)

    def hold(self, run: object, estimate: Estimate, most: float, use: Allowance) -> tuple[float, str]:
        """Set aside what a request may cost: its output tokens, up to `most`, and the dimension that allows no more.
        Fewer than LEAST_OUTPUT, and nothing set aside, if they will never fit again.

        If they do not fit because of other requests under way, those are waited for: they seldom use all they may.
        Of what is free a request gets half while there are other runs, so that these can ask as well."""
        with self._changed:
            while True:
                spend = self.spend
                left = {
                    name: limit - getattr(spend, name)
                    for name in ("tokens", "usd")
                    if (limit := getattr(self.limits, name)) is not None
                }
                held = {name: sum(other[name] for other in self._held.values()) for name in left}
                fit, narrowest = estimate.fitting({name: left[name] - held[name] for name in left})
                if fit >= LEAST_OUTPUT:
                    break
                if estimate.fitting(left)[0] < LEAST_OUTPUT:
                    return 0.0, narrowest
                with use.waiting():
                    self._changed.wait()
            if fit == float("inf"):  # no limit, or a model that costs nothing
                return most, narrowest
            share = fit if len(self._runs) == 1 else max(LEAST_OUTPUT, fit / 2)
            granted = min(most, share, MOST_OUTPUT)
            self._held[run] = estimate.of(granted)
            return granted, narrowest

    def release(self, run: object) -> None:
        """The request is over, and paid for. Safe to call twice."""
        with self._changed:
            self._release(run)

    def _release(self, run: object) -> None:
        if self._held.pop(run, None) is not None:
            self._changed.notify_all()


def exhausted(limits: Budget, spend: Spend, dimensions: tuple[str, ...]) -> str | None:
    """The first exhausted dimension, or None. A USD limit is exhausted too when a reply came without its price."""
    for dimension in dimensions:
        limit = getattr(limits, dimension)
        if limit is not None and (getattr(spend, dimension) >= limit or (dimension == "usd" and not spend.usd_known)):
            return dimension
    return None
