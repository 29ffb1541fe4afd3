"""ParallelKernelBench's table through our own estimators, as far as published aggregates allow."""

import random
from collections import Counter

import pytest
from pydantic import ValidationError

from problems.catalogue import entries
from runs.metrics import estimate
from runs.published import SAMPLES, Published, at_1_bounds, expand, published

TABLE = published()
MODELS = pytest.mark.parametrize("model", TABLE.models, ids=lambda model: model.name)


@MODELS
@pytest.mark.parametrize("what", ["correct", "fast1"])
def test_the_estimators_give_the_published_figures(model, what) -> None:
    samples = expand(model, TABLE.problems)
    succeeded = [[one.correct if what == "correct" else one.fast for one in of] for of in samples]
    first = estimate([(1, int(of[0])) for of in succeeded], 1)
    any_of_three = estimate([(SAMPLES, sum(of)) for of in succeeded], 3)
    at_1, at_3 = getattr(model, what)
    assert first.value * TABLE.problems == pytest.approx(at_1) and any_of_three.value * TABLE.problems == pytest.approx(
        at_3
    )
    assert first.problems == any_of_three.problems == 87 and not first.short and not any_of_three.short
    assert first.low <= first.value <= first.high
    assert all(one.correct or not one.fast for of in samples for one in of)


@MODELS
def test_failure_modes_are_the_published_ones(model) -> None:
    modes = Counter(first.mode for first, *_ in expand(model, TABLE.problems) if not first.correct)
    assert modes == Counter(model.modes)


@pytest.mark.parametrize("seed", range(5))
@MODELS
def test_the_bounds_hold_for_any_samples_with_the_published_aggregates(model, seed) -> None:
    draw = random.Random(seed)
    at_1, at_3 = model.fast1
    low, high = at_1_bounds(at_1, at_3, TABLE.problems)
    successes = [1 + draw.randint(0, 2) for _ in range(at_1)]
    successes += [draw.randint(1, 2) for _ in range(at_3 - at_1)]
    counts = [(SAMPLES, c) for c in successes] + [(SAMPLES, 0)] * (TABLE.problems - at_3)
    assert low - 1e-12 <= estimate(counts, 1).value <= high + 1e-12
    assert estimate(counts, 3).value == pytest.approx(at_3 / TABLE.problems)


def test_one_published_pair_cannot_be_an_estimate_over_three_samples() -> None:
    """DeepSeek V4 Pro is 0 at 1 and 1 at 3: @1 is the first sample's figure, not the unbiased one of three."""
    outside = [
        model.name
        for model in TABLE.models
        for at_1, at_3 in (model.correct, model.fast1)
        if not at_1_bounds(at_1, at_3, TABLE.problems)[0] <= at_1 / TABLE.problems
    ]
    assert outside == ["DeepSeek V4 Pro"]


def test_categories_are_our_families_and_one_problem_short() -> None:
    ours = Counter(entry.family for entry in entries())
    assert set(TABLE.categories) == set(ours)
    assert sum(category.problems for category in TABLE.categories.values()) == 86 and ours.total() == 87
    assert sum(category.correct[0] for category in TABLE.categories.values()) == 28


def test_a_table_that_does_not_add_up_is_refused() -> None:
    wrong = TABLE.model_dump()
    wrong["models"][0]["modes"]["compile"] += 1
    with pytest.raises(ValidationError, match="are not 87 problems"):
        Published(**wrong)
