"""Counts what a run uses against its limits, and says what its next request or call may use."""

from __future__ import annotations

from collections.abc import Callable

from agent.cap import Cap, Estimate, exhausted
from agent.models.bounds import LEAST_OUTPUT, Bounds
from harness.allowance import Allowance
from harness.errors import BudgetEndedError
from runs.events import Budget, Spend
from runs.messages import Turn, Usage
from runs.spend import add_call, add_turn, add_use, at_wall, since

DIMENSIONS = ("steps", "tokens", "usd", "wall_s", "device_s")
TOOL_DIMENSIONS = ("wall_s", "device_s")
"""What a tool call uses. A reply that used up steps, tokens or USD is paid for, so its calls are still worth making."""
STOPPED = "stopped"
"""What has ended a request or a call that a person broke off, where a limit's name would stand."""
REPLIES, CALLS = "replies", "tool calls"
"""What a step is, as whoever leads the run is told: one of a model that we ask, one of an agent from outside."""
REQUEST_DIMENSIONS = ("wall_s",)
"""What cuts a request that is under way: the rest has been looked at before it."""


class Meter:
    """Starts the clock when it is made. `clock` gives seconds."""

    def __init__(
        self,
        budget: Budget,
        clock: Callable[[], float],
        spent: Spend | None = None,
        cap: Cap | None = None,
        stopped: Callable[[], bool] | None = None,
    ) -> None:
        """`spent`: what a run that is resumed has used before. `cap`: what it shares with other runs (see `join`).
        `stopped`: whether the request or call that is under way is to be broken off, by a limit called STOPPED."""
        self._budget = budget
        self._stopped = stopped
        self._clock = clock
        self._before = before = spent or Spend()
        self._now: tuple[Spend, Allowance | None] = before, None
        """Without the call that is under way, and that call. One tuple, because other runs read it at any time."""
        self._started = clock() - before.wall_s - before.waited_s
        self._cap = cap or Cap()

    def join(self) -> None:
        """From now until `close` what the run uses counts under the cap, while it uses it; what it used before does
        not."""
        self._cap.join(self, lambda: since(self.spend, self._before))

    def add_turn(self, turn: Turn) -> None:
        """The request is over."""
        self._now = add_turn(self._now[0], turn), None
        self._cap.release(self)

    def add_call(self) -> None:
        """A step of an agent that comes from outside."""
        self._now = add_call(self._now[0]), self._now[1]

    def leave_out(self, seconds: float) -> None:
        """Time that just passed and does not count: the run was paused."""
        self._started += seconds

    def add_use(self, device_s: float, waited_s: float = 0.0) -> None:
        """The call is over: seconds x devices under lease, and seconds of waiting for them."""
        self._now = add_use(self._now[0], device_s, waited_s), None

    def close(self) -> Spend:
        """The run is over: what it has used; other runs share what is left."""
        spend = self.spend
        self._cap.leave(self)
        return spend

    @property
    def spend(self) -> Spend:
        """With the working time until now, and what the call under way has used."""
        spend, use = self._now
        if use is not None:
            spend = add_use(spend, use.device_s, use.waited_s)
        return at_wall(spend, self._clock() - self._started)

    def over(self, dimensions: tuple[str, ...] = DIMENSIONS) -> str | None:
        """The first exhausted limit, or None: a dimension, or `sweep ` and one of the cap's."""
        if dimension := exhausted(self._budget, self.spend, dimensions):
            return dimension
        dimension = self._cap.over(dimensions)
        return f"sweep {dimension}" if dimension else None

    def call(self) -> Allowance:
        """A tool call begins."""
        return self._begin(TOOL_DIMENSIONS)

    def request(self, expected: Usage, cost_usd: Callable[[Usage], float | None]) -> Bounds:
        """A request begins. `expected` is its input as far as is known, `cost_usd` the price of a usage. May wait for
        other runs' requests (see `Cap.hold`), which `Bounds.use` counts.

        Raises BudgetEndedError if the input and a minimal reply do not fit into what is left."""
        use = self._begin(REQUEST_DIMENSIONS)
        estimate = self._estimate(expected, cost_usd)
        spend = self._now[0]
        limits = {name: getattr(self._budget, name) for name in ("tokens", "usd")}
        left = {name: limit - getattr(spend, name) for name, limit in limits.items() if limit is not None}
        fit, dimension = estimate.fitting(left)
        if fit < LEAST_OUTPUT:
            raise BudgetEndedError(dimension)
        fit, dimension = self._cap.hold(self, estimate, fit, use)
        if fit < LEAST_OUTPUT:
            raise BudgetEndedError(f"sweep {dimension}")
        return Bounds(None if fit == float("inf") else int(fit), use, expected)

    def remaining(self, share: Budget | None = None, before: Spend | None = None, steps: str = REPLIES) -> str:
        """One line for the model: what is left of every limit that there is. `share`: of a lane's limits instead,
        `before` what had been used when it began; `steps`: what they are called."""
        spend, budget, before = self.spend, share or self._budget, before or Spend()
        parts = []
        for dimension in DIMENSIONS:
            limit = getattr(budget, dimension)
            if limit is not None:
                left = max(0, limit - getattr(spend, dimension))
                parts.append(_LEFT[dimension].format(left=left, limit=limit - getattr(before, dimension), steps=steps))
        return f"Budget left: {', '.join(parts) or 'no limit'}."

    def _begin(self, dimensions: tuple[str, ...]) -> Allowance:
        limits = (self._budget, self._cap.limits)
        limited = any(getattr(limit, name) is not None for limit in limits for name in dimensions)
        over = (lambda: self.over(dimensions)) if limited else None
        if (stopped := self._stopped) is not None:
            use = Allowance(lambda: STOPPED if stopped() else over and over())
        else:
            use = Allowance(over)
        self._now = self._now[0], use
        return use

    def _estimate(self, expected: Usage, cost_usd: Callable[[Usage], float | None]) -> Estimate:
        if self._budget.usd is None and self._cap.limits.usd is None:
            return Estimate(expected)
        input_usd = cost_usd(expected) or 0.0
        thousand = cost_usd(expected.model_copy(update={"output_tokens": 1000})) or 0.0
        return Estimate(expected, input_usd, (thousand - input_usd) / 1000)


_LEFT = {
    "steps": "{left} of {limit} {steps}",
    "tokens": "{left} of {limit} tokens",
    "usd": "{left:.2f} of {limit:.2f} USD",
    "wall_s": "{left:.0f} of {limit:.0f} s wall time",
    "device_s": "{left:.0f} of {limit:.0f} device-seconds",
}
