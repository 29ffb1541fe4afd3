"""pass@k, fast_p@k and what goes with them. Pure functions of counts and rows; numpy only.

Everything is a mean over *problems*, all of those that were to be tried: one without a success counts as much as one
with. Intervals are 95% and come from resampling problems: samples of one problem are not independent of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from runs.rows import CORRECT, Figure, ProblemKey, Row, Success

Floats = NDArray[np.float64]
Axis = Literal["step", "tokens", "usd", "wall_s", "device_s"]
Key = TypeVar("Key")

DRAWS = 2000
"""Of a bootstrap."""


def at_k(n: int, c: int, k: int) -> float:
    """Chance that at least one of k samples drawn without replacement from n, of which c are successes, is one: the
    unbiased estimator of success within k tries. Raises ValueError unless 0 <= c <= n and 1 <= k <= n."""
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"{c} of {n} samples, k = {k}")
    missed = 1.0
    for i in range(n - c + 1, n + 1):  # comb(n - c, k) / comb(n, k) as a product: no large numbers
        missed *= max(0.0, 1.0 - k / i)
    return 1.0 - missed


@dataclass(frozen=True)
class Estimate:
    """A mean over problems with its 95% interval."""

    value: float
    low: float
    high: float
    problems: int
    short: int = 0
    """Problems with fewer than k samples. They count with as many as they have (none: as not solved), which is never
    too much: `value` is then a lower bound."""

    def __format__(self, spec: str) -> str:
        return f"{self.value:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"


def per_problem(counts: Sequence[tuple[int, int]], k: int) -> Floats:
    """`at_k` of each problem's (samples, successes); k is cut to the samples there are."""
    return np.array([at_k(n, c, min(n, k)) if n else 0.0 for n, c in counts], dtype=np.float64)


def estimate(counts: Sequence[tuple[int, int]], k: int = 1, *, draws: int = DRAWS, seed: int = 0) -> Estimate:
    """Of (samples, successes) of every problem. Raises ValueError for k < 1."""
    if k < 1:
        raise ValueError(f"k = {k}")
    values = per_problem(counts, k)
    low, high = bootstrap(values[:, None], draws=draws, seed=seed)
    mean = float(values.mean()) if len(values) else 0.0
    return Estimate(mean, float(low[0]), float(high[0]), len(values), sum(n < k for n, _ in counts))


def bootstrap(values: Floats, *, draws: int = DRAWS, seed: int = 0) -> tuple[Floats, Floats]:
    """95% percentile intervals of the means of each column of (problems, quantities), resampling problems."""
    problems = len(values)
    if problems == 0:
        zeros = np.zeros(values.shape[1])
        return zeros, zeros
    weights = np.random.default_rng(seed).multinomial(problems, np.full(problems, 1 / problems), size=draws) / problems
    low, high = np.percentile(weights @ values, [2.5, 97.5], axis=0)
    return low, high


def counts(rows: Sequence[Row], problems: Sequence[ProblemKey], success: Success = CORRECT) -> list[tuple[int, int]]:
    """(samples, successes) of each problem; rows of other problems and rows that are no samples are left out."""
    of: dict[ProblemKey, list[int]] = {problem: [0, 0] for problem in problems}
    for row in rows:
        if row.outcome == "sample" and (found := of.get(row.problem)) is not None:
            found[0] += 1
            found[1] += success.holds(row)
    return [(n, c) for n, c in of.values()]


def success_at_k(
    rows: Sequence[Row], problems: Sequence[ProblemKey], success: Success = CORRECT, k: int = 1
) -> Estimate:
    """pass@k, or fast_p@k if `success` has a p."""
    return estimate(counts(rows, problems, success), k)


@dataclass(frozen=True)
class Curve:
    """Shares of problems over x, with intervals where they were asked for."""

    x: Floats
    y: Floats
    low: Floats | None = None
    high: Floats | None = None


def fast_curve(
    rows: Sequence[Row], problems: Sequence[ProblemKey], ps: Sequence[float], success: Success = CORRECT, k: int = 1
) -> Curve:
    """fast_p@k at every p, with intervals; what else counts is as in `success`."""
    at = [success.model_copy(update={"p": p}) for p in ps]
    columns = [per_problem(counts(rows, problems, one), k) for one in at]
    values = np.array(columns, dtype=np.float64).reshape(len(ps), len(problems)).T
    low, high = bootstrap(values)
    means = values.mean(axis=0) if len(problems) else np.zeros(len(ps))
    return Curve(np.array(ps, dtype=np.float64), means, low, high)


def spent(row: Row, axis: Axis) -> float:
    """What the whole run used."""
    return float(row.spend.steps if axis == "step" else getattr(row.spend, axis))


def spent_until(row: Row, axis: Axis, success: Success = CORRECT) -> float | None:
    """What the run had used at its first success; None if its official evaluation is none. A run whose success shows
    in that evaluation alone used all that it used."""
    if not success.holds(row):
        return None
    first = next((progress for progress in row.progress if success.reached(progress)), None)
    if first is not None:
        return float(getattr(first, axis))
    return spent(row, axis)


def solved_curve(rows: Sequence[Row], problems: Sequence[ProblemKey], axis: Axis, success: Success = CORRECT) -> Curve:
    """Share of problems that one run solves within x of a budget, as a step function: `y[i]` holds from `x[i]` on. It
    ends at pass@1 (fast_p@1)."""
    samples = dict(zip(problems, (n for n, _ in counts(rows, problems)), strict=True))
    points = []
    for row in rows:
        spent = spent_until(row, axis, success) if row.outcome == "sample" and samples.get(row.problem) else None
        if spent is not None:
            points.append((spent, 1.0 / (samples[row.problem] * len(problems))))
    points.sort()
    return Curve(np.array([0.0, *(spent for spent, _ in points)]), np.cumsum([0.0, *(weight for _, weight in points)]))


@dataclass(frozen=True)
class Mean:
    """A mean of what was measured, and of how much."""

    value: float | None
    """None if there was nothing."""
    problems: int
    runs: int


def geomean_speedup(rows: Sequence[Row], figure: Figure = "headline") -> Mean:
    """Geometric mean of the point estimates of correct runs: within each problem first, then over problems, so that a
    problem that is often solved weighs no more than one solved once. It says nothing of problems not solved."""
    logs: dict[ProblemKey, list[float]] = {}
    for row in rows:
        ratio = row.ratio(figure) if row.outcome == "sample" and row.correct else None
        if ratio is not None and 0 < ratio.value < np.inf:
            logs.setdefault(row.problem, []).append(float(np.log(ratio.value)))
    runs = sum(map(len, logs.values()))
    value = float(np.exp(np.mean([np.mean(of) for of in logs.values()]))) if logs else None
    return Mean(value, len(logs), runs)


def roofline_share(rows: Sequence[Row]) -> Mean:
    """Median over correct runs of how much of the roofline's floor is reached (1 is all)."""
    known = [row for row in rows if row.outcome == "sample" and row.correct and row.sol_fraction is not None]
    value = float(np.median([row.sol_fraction for row in known if row.sol_fraction is not None])) if known else None
    return Mean(value, len({row.problem for row in known}), len(known))


def shares(rows: Sequence[Row], problems: Sequence[ProblemKey], kind: Callable[[Row], Key]) -> dict[Key, float]:
    """How many of the problems fall to each kind at one sample (expected number; a problem whose samples differ is
    divided). The numbers add up to the problems that have samples."""
    samples: dict[ProblemKey, list[Row]] = {problem: [] for problem in problems}
    for row in rows:
        if row.outcome == "sample" and row.problem in samples:
            samples[row.problem].append(row)
    found: dict[Key, float] = {}
    for of in samples.values():
        for row in of:
            found[kind(row)] = found.get(kind(row), 0.0) + 1 / len(of)
    return found
