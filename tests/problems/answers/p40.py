from functools import partial
from typing import Any

from problems.spec import Arguments
from tests.problems.answers.optimizers import AVERAGES, RULES, Rule, adam, mean_gradients


def stepped(ranks: list[Arguments], rule: Rule = adam, average: Any = mean_gradients, root: int = 0) -> list[Any]:
    weights, first, second = (list(ranks[root][i : i + 4]) for i in (2, 6, 10))
    grads = average(ranks, weights)
    updated = [rule(*state, *ranks[0][14:]) for state in zip(weights, first, second, grads, strict=True)]
    return [tuple(of_one[i] for i in range(3) for of_one in updated)] * len(ranks)


def oracle(ranks: list[Arguments]) -> list[Any]:
    return stepped(ranks)


def own_state(ranks: list[Arguments]) -> list[Any]:
    """Each rank begins with what it holds, without the broadcast."""
    return [stepped(ranks, root=rank)[rank] for rank in range(len(ranks))]


def own_moments(ranks: list[Arguments]) -> list[Any]:
    """Only parameters are broadcast."""
    return [stepped([(*ranks[0][:6], *own[6:]), *ranks[1:]])[0] for own in ranks]


WRONG = {
    **{name: partial(stepped, rule=rule) for name, rule in RULES.items()},
    **{name: partial(stepped, average=average) for name, average in AVERAGES.items()},
    "state not broadcast": own_state,
    "moments not broadcast": own_moments,
}
