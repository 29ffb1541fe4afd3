"""The estimators against closed forms and against all k-subsets, one by one."""

import itertools
import math
import random

import numpy as np
import pytest

from harness.types import Ratio, Verdict
from runs.compare import compare, permutation_test, sign_test
from runs.events import Spend
from runs.metrics import (
    at_k,
    bootstrap,
    estimate,
    fast_curve,
    geomean_speedup,
    roofline_share,
    shares,
    solved_curve,
    spent_until,
    success_at_k,
)
from runs.rows import ProblemKey, Progress, Row, Success
from tests.runs.factories import config

FAST = Success(p=1.0)


def key(problem: int) -> ProblemKey:
    return ProblemKey("", problem, "pkb")


def row(problem: int, low: float | None = None, *, device=None, outcome="sample", progress=(), **changed) -> Row:
    """A correct run with this lower bound of the eager ratio (None: a wrong one)."""

    def ratio(bound):
        return None if bound is None else Ratio(value=bound * 1.1, low=bound, high=bound * 1.2)

    given = {
        "run_id": "r", "path": "r", "config": config(problem=problem), "name": "n", "family": "f", "outcome": outcome,
        "reason": "submitted", "verdict": Verdict.race if low is None else Verdict.passed,
        "mode": "mismatch" if low is None else None, "eager": ratio(low), "device": ratio(device), "attempts": 1,
        "spend": Spend(steps=9, tokens=900, usd=9.0, device_s=90.0), "progress": progress, "started_at": 0.0,
    }  # fmt: skip
    return Row(**{**given, **changed})


def draw_rows(draw: random.Random, problems: int, samples: int) -> list[Row]:
    return [
        row(problem, draw.choice([None, 0.5, 1.0, 1.01, 2.0]), device=draw.choice([None, 0.8, 1.5]))
        for problem in range(problems)
        for _ in range(samples)
    ]


@pytest.mark.parametrize("n", range(1, 8))
def test_at_k_is_the_share_of_all_subsets_with_a_success(n) -> None:
    for c in range(n + 1):
        for k in range(1, n + 1):
            subsets = list(itertools.combinations([True] * c + [False] * (n - c), k))
            assert at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)
            assert at_k(n, c, k) == pytest.approx(1 - math.comb(n - c, k) / math.comb(n, k), abs=1e-12)


def test_at_k_in_closed_form_and_at_its_ends() -> None:
    assert at_k(3, 1, 1) == pytest.approx(1 / 3) and at_k(3, 1, 3) == 1.0 and at_k(3, 0, 3) == 0.0
    assert at_k(100_000, 1, 50_000) == pytest.approx(0.5)
    for n, c, k in [(3, 4, 1), (3, 1, 4), (3, 1, 0), (0, 0, 1), (3, -1, 1)]:
        with pytest.raises(ValueError):
            at_k(n, c, k)


def test_at_k_is_unbiased() -> None:
    """Its mean over all outcomes of n tries with chance q is the chance of a success in k tries."""
    for n, k, q in [(5, 1, 0.3), (5, 3, 0.3), (8, 4, 0.05), (6, 6, 0.7)]:
        mean = sum(math.comb(n, c) * q**c * (1 - q) ** (n - c) * at_k(n, c, k) for c in range(n + 1))
        assert mean == pytest.approx(1 - (1 - q) ** k)


@pytest.mark.parametrize("seed", range(8))
def test_fast_p_at_k_of_random_rows_is_the_mean_over_all_subsets(seed) -> None:
    draw = random.Random(seed)
    problems, samples = draw.randint(1, 6), draw.randint(1, 5)
    rows = draw_rows(draw, problems, samples)
    keys = [key(problem) for problem in range(problems + 1)]  # one that nobody tried
    success = Success(p=draw.choice([None, 0.7, 1.0, 1.2]), figure=draw.choice(["headline", "eager", "device"]))
    for k in range(1, samples + 1):
        expected = 0.0
        for problem in keys:
            of = [success.holds(one) for one in rows if one.problem == problem]
            subsets = list(itertools.combinations(of, k))
            expected += sum(map(any, subsets)) / len(subsets) if subsets else 0.0
        found = success_at_k(rows, keys, success, k)
        assert found.value == pytest.approx(expected / len(keys)) and found.short == 1
        assert found.low - 1e-9 <= found.value <= found.high + 1e-9 and found.problems == len(keys)


@pytest.mark.parametrize("seed", range(4))
def test_fast_p_falls_with_p_rises_with_k_and_never_passes_pass(seed) -> None:
    rows, keys, ps = draw_rows(random.Random(seed), 7, 4), [key(p) for p in range(7)], [0.0, 0.5, 0.9, 1.0, 1.4, 3.0]
    for k in (1, 2, 4):
        curve = fast_curve(rows, keys, ps, Success(figure="eager"), k)
        assert all(np.diff(curve.y) <= 0) and curve.y[0] <= success_at_k(rows, keys, k=k).value + 1e-12
        assert list(curve.y) == [success_at_k(rows, keys, Success(p=p, figure="eager"), k).value for p in ps]
        assert curve.low is not None and all(curve.low <= curve.y) and all(curve.y <= curve.high)
    values = [success_at_k(rows, keys, FAST, k).value for k in range(1, 5)]
    assert values == sorted(values)


def test_what_is_no_sample_counts_nowhere_and_an_untried_problem_does() -> None:
    rows = [row(1, 2.0), row(1, outcome="fault"), row(2, outcome="unfinished"), row(9, 2.0)]
    found = success_at_k(rows, [key(1), key(2)], FAST)
    assert (found.value, found.short, found.problems) == (0.5, 1, 2)
    assert success_at_k(rows, [key(1), key(2)], FAST, k=3).short == 2
    with pytest.raises(ValueError):
        estimate([(1, 1)], 0)


def test_too_few_samples_give_a_lower_bound() -> None:
    assert estimate([(2, 1), (5, 1)], 5).value == 1.0 and estimate([(2, 0), (5, 1)], 5).value == 0.5
    assert estimate([(2, 1)], 5).short == 1


def test_margin_raw_and_figure_change_what_counts() -> None:
    rows, keys = [row(1, 1.02, device=0.9)], [key(1)]  # point estimate 1.122 eager, 0.99 on the device
    assert [
        success_at_k(rows, keys, success).value
        for success in (
            Success(p=1.0, figure="eager"),
            Success(p=1.0, figure="eager", margin=0.05),
            Success(p=1.1, figure="eager"),
            Success(p=1.1, figure="eager", raw=True),
            Success(p=1.0),
            Success(p=0.85),
        )
    ] == [1.0, 0.0, 0.0, 1.0, 0.0, 1.0]


def test_the_bootstrap_covers_as_often_as_it_says() -> None:
    """For the mean of 60 problems solved with chance 0.4."""
    drawn, covered = np.random.default_rng(1), 0
    for trial in range(400):
        low, high = bootstrap((drawn.random((60, 1)) < 0.4).astype(float), draws=400, seed=trial)
        covered += low[0] <= 0.4 <= high[0]
    assert 0.90 <= covered / 400 <= 0.98


def test_solved_curves_end_where_the_official_evaluations_do() -> None:
    early = Progress(step=2, tokens=200, usd=2.0, wall_s=1, device_s=20.0, eager=Ratio(value=0.9, low=0.8, high=1))
    late = Progress(step=5, tokens=500, usd=5.0, wall_s=1, device_s=50.0, eager=Ratio(value=2.2, low=2.0, high=3))
    rows = [
        row(1, 2.0, progress=(early, late)),
        row(1, None, progress=(early,)),  # its best failed when it was graded
        row(2, 1.5),  # success shows in the official evaluation alone
        row(3, outcome="fault"),
    ]
    keys = [key(1), key(2), key(3), key(4)]
    solved = solved_curve(rows, keys, "step")
    assert list(solved.x) == [0.0, 2.0, 9.0] and list(solved.y) == pytest.approx([0.0, 0.125, 0.375])
    assert solved.y[-1] == success_at_k(rows, keys).value
    fast = solved_curve(rows, keys, "usd", FAST)
    assert list(fast.x) == [0.0, 5.0, 9.0] and fast.y[-1] == success_at_k(rows, keys, FAST).value
    assert spent_until(rows[0], "tokens") == 200.0 and spent_until(rows[0], "device_s", FAST) == 50.0
    assert spent_until(rows[1], "tokens") is None


def test_the_geometric_mean_gives_every_problem_one_voice() -> None:
    two, half = Ratio(value=2.0, low=1.9, high=2.1), Ratio(value=0.5, low=0.4, high=0.6)
    rows = [row(1, 1.0, eager=two), row(1, 1.0, eager=two), row(1, 1.0, eager=two), row(2, 1.0, eager=half), row(3)]
    found = geomean_speedup(rows)
    assert found.value == pytest.approx(1.0) and (found.problems, found.runs) == (2, 4)
    assert geomean_speedup([row(3)]).value is None
    shared = [row(1, 1.0, sol_fraction=0.2), row(2, 1.0, sol_fraction=0.6), row(2, None, sol_fraction=1.0)]
    assert roofline_share(shared).value == pytest.approx(0.4) and roofline_share(shared).runs == 2


def test_failure_modes_add_up_to_the_problems_that_were_tried() -> None:
    rows = [row(1, 2.0), row(1), row(2), row(2), row(3, outcome="fault")]
    found = shares(rows, [key(1), key(2), key(3)], lambda one: one.mode)
    assert found == {None: 0.5, "mismatch": 1.5}


def brute_permutation(differences) -> float:
    sums = [
        abs(sum(s * d for s, d in zip(signs, differences, strict=True)))
        for signs in itertools.product((-1, 1), repeat=len(differences))
    ]
    return sum(one >= abs(sum(differences)) - 1e-9 for one in sums) / len(sums)


@pytest.mark.parametrize("seed", range(5))
def test_the_permutation_test_is_that_over_all_signs(seed) -> None:
    draw = random.Random(seed)
    differences = [draw.choice([-1, -1 / 3, 0, 1 / 3, 2 / 3, 1]) for _ in range(8)]
    assert permutation_test(np.array(differences)) == pytest.approx(brute_permutation(differences))
    many = np.array([draw.choice([-1.0, 1.0, 1.0]) for _ in range(20)])  # drawn, not enumerated
    wins = int((many > 0).sum())
    assert permutation_test(many) == pytest.approx(sign_test(wins, 20 - wins), abs=0.01)


def test_the_sign_test_in_closed_form() -> None:
    assert sign_test(0, 0) == 1.0 and sign_test(3, 3) == 1.0
    assert sign_test(5, 0) == pytest.approx(2 / 32) and sign_test(1, 7) == pytest.approx(2 * 9 / 256)
    assert 0 <= sign_test(1000, 900) < 0.05


def test_head_to_head_is_paired_over_problems_that_both_tried() -> None:
    first = [row(p, 2.0) for p in range(6)] + [row(8, 2.0)]
    second = [row(p, 1.0 if p < 2 else None) for p in range(6)] + [row(9, 3.0)]
    keys = [key(p) for p in range(10)]
    found = compare(first, second, keys)
    assert (found.wins, found.losses, found.ties, found.difference.problems) == (4, 0, 2, 6)
    assert found.difference.value == pytest.approx(4 / 6) and found.p_value == found.sign_p_value == pytest.approx(
        1 / 8
    )
    assert found.speedup_ratio is not None and found.speedup_ratio.value == pytest.approx(2.0)
    assert found.speedup_ratio.problems == 2
    back = compare(second, first, keys)
    assert back.difference.value == -found.difference.value and back.p_value == found.p_value
    alone = compare(first, [], keys)
    assert alone.difference.problems == 0 and alone.p_value == 1.0 and alone.speedup_ratio is None


def test_two_equal_models_differ_significantly_about_as_often_as_they_should() -> None:
    draw, found = random.Random(3), 0
    for _ in range(100):
        sides = [[row(p, 1.0 if draw.random() < 0.5 else None) for p in range(12)] for _ in range(2)]
        found += compare(*sides, [key(p) for p in range(12)]).p_value < 0.05
    assert found <= 10
