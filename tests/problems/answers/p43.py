from functools import partial

import torch

from problems.spec import Arguments
from tests.problems.answers.optimizers import RULES, Rule, adam
from tests.problems.answers.shared import everyone


def gathered(ranks: list[Arguments], rule: Rule = adam, order: int = 1) -> list[torch.Tensor]:
    parts = [rule(w, m, v, grad, *hyper)[0] for grad, w, m, v, *hyper in ranks]
    return everyone(torch.cat(parts[::order]), ranks)


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return gathered(ranks)


def averaged(ranks: list[Arguments]) -> list[torch.Tensor]:
    """As if gradients were still sums over ranks."""
    return gathered([(own[0] / len(ranks), *own[1:]) for own in ranks])


def others_as_they_were(ranks: list[Arguments]) -> list[torch.Tensor]:
    parts = oracle(ranks)[0].chunk(len(ranks))
    return [
        torch.cat([parts[rank] if rank == other else ranks[other][1] for other in range(len(ranks))])
        for rank in range(len(ranks))
    ]


WRONG = {
    # The moments are not returned.
    **{name: partial(gathered, rule=rule) for name, rule in RULES.items() if name != "moments as they were"},
    "gradients divided by the number of ranks": averaged,
    "the others' parameters as they were": others_as_they_were,
    "parts in reverse order": partial(gathered, order=-1),
}
TRIAL = {"part": 2048}
