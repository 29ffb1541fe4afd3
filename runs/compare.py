"""Two configurations head to head: paired over problems, so that how hard the problems are cancels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import comb

import numpy as np

from runs.metrics import Estimate, Floats, at_k, bootstrap, counts, geomean_speedup
from runs.rows import CORRECT, Figure, ProblemKey, Row, Success

_EXACT_PAIRS = 16
"""Up to so many differing problems all signs are enumerated (65,536)."""
_SIGN_DRAWS = 100_000


@dataclass(frozen=True)
class Comparison:
    """Two configurations on the same problems. `difference` is first minus second, of the mean per problem."""

    difference: Estimate
    p_value: float
    """Two-sided, of the paired permutation test: signs of the problems' differences flipped at random (all ways of it
    for up to 16 differing problems)."""
    wins: int
    losses: int
    ties: int
    sign_p_value: float
    """Two-sided exact sign test on wins and losses."""
    speedup_ratio: Estimate | None
    """Geometric mean of first's speed-up over second's, on problems that both solved; None if there are none."""


def compare(
    first: Sequence[Row],
    second: Sequence[Row],
    problems: Sequence[ProblemKey],
    success: Success = CORRECT,
    k: int = 1,
    *,
    seed: int = 0,
) -> Comparison:
    """Head to head, over problems that both have samples of."""
    ours, theirs = counts(first, problems, success), counts(second, problems, success)
    both = [i for i in range(len(problems)) if ours[i][0] and theirs[i][0]]
    # The same k on either side of a problem: more tries are no merit.
    tries = [min(k, ours[i][0], theirs[i][0]) for i in both]
    differences = np.array(
        [at_k(*ours[i], t) - at_k(*theirs[i], t) for i, t in zip(both, tries, strict=True)], dtype=np.float64
    )
    low, high = bootstrap(differences[:, None], seed=seed)
    mean = float(differences.mean()) if len(differences) else 0.0
    wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
    return Comparison(
        difference=Estimate(mean, float(low[0]), float(high[0]), len(both), sum(t < k for t in tries)),
        p_value=permutation_test(differences, seed=seed),
        wins=wins,
        losses=losses,
        ties=len(both) - wins - losses,
        sign_p_value=sign_test(wins, losses),
        speedup_ratio=_speedup_ratio(first, second, [problems[i] for i in both], success.figure, seed),
    )


def permutation_test(differences: Floats, *, seed: int = 0) -> float:
    """Two-sided p-value of paired differences being symmetric about zero, by their sum."""
    moving = differences[differences != 0]
    if not len(moving):
        return 1.0
    # Equal sums that rounding parts must count as equal.
    bound = abs(moving.sum()) - 1e-9
    if len(moving) <= _EXACT_PAIRS:
        signs = np.array(list(product((-1.0, 1.0), repeat=len(moving))))
        return float((np.abs(signs @ moving) >= bound).mean())
    drawn = np.random.default_rng(seed)
    extreme = 0
    for _ in range(_SIGN_DRAWS // 1000):
        signs = drawn.integers(0, 2, size=(1000, len(moving))) * 2.0 - 1.0
        extreme += int((np.abs(signs @ moving) >= bound).sum())
    return (extreme + 1) / (_SIGN_DRAWS + 1)


def sign_test(wins: int, losses: int) -> float:
    """Two-sided exact p-value of so many wins and losses if either were as likely."""
    n = wins + losses
    return min(1.0, 2 * sum(comb(n, i) for i in range(min(wins, losses) + 1)) / 2**n)


def _speedup_ratio(
    first: Sequence[Row], second: Sequence[Row], problems: Sequence[ProblemKey], figure: Figure, seed: int
) -> Estimate | None:
    logs = []
    for problem in problems:
        sides = [
            geomean_speedup([row for row in rows if row.problem == problem], figure).value for rows in (first, second)
        ]
        if sides[0] and sides[1]:
            logs.append(float(np.log(sides[0] / sides[1])))
    if not logs:
        return None
    values = np.array(logs)
    low, high = bootstrap(values[:, None], seed=seed)
    return Estimate(float(np.exp(values.mean())), float(np.exp(low[0])), float(np.exp(high[0])), len(logs))
