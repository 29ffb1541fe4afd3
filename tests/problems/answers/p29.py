from collections.abc import Callable

import torch

from problems.spec import Arguments


def combined(
    ranks: list[Arguments], weight: Callable[[torch.Tensor, int], torch.Tensor], first_order: bool = False
) -> list[torch.Tensor]:
    """`weight(weights of a token, choice)`; `first_order`: a rank's rows are taken to be sorted by source first."""
    experts, size = ranks[0][3], len(ranks)
    pairs = [(int(x), source, t) for source, own in enumerate(ranks) for t, chosen in enumerate(own[2]) for x in chosen]
    key = (lambda p: (p[1], p[0], p[2])) if first_order else (lambda p: p)
    row = {}
    for rank, own in enumerate(ranks):
        mine = sorted((p for p in pairs if p[0] * size // experts == rank), key=key)
        row |= dict(zip(mine, own[0], strict=True))
    results = []
    for source, (_, weights, selected, *_) in enumerate(ranks):
        tokens = range(len(selected))
        terms = [
            [weight(weights[t], j) * row[int(x), source, t] for j, x in enumerate(selected[t].tolist())] for t in tokens
        ]
        results.append(torch.stack([torch.stack(own).sum(0) for own in terms]))
    return results


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return combined(ranks, lambda weights, j: weights[j])


def first_choice(ranks: list[Arguments]) -> list[torch.Tensor]:
    return combined(ranks, lambda weights, j: weights[j] * (j == 0))


def unweighted(ranks: list[Arguments]) -> list[torch.Tensor]:
    return combined(ranks, lambda weights, j: torch.ones_like(weights[j]) / len(weights))


def swapped(ranks: list[Arguments]) -> list[torch.Tensor]:
    return combined(ranks, lambda weights, j: weights[-1 - j])


def not_regrouped(ranks: list[Arguments]) -> list[torch.Tensor]:
    return combined(ranks, lambda weights, j: weights[j], first_order=True)


WRONG = {
    "first choice only": first_choice,
    "mean instead of weights": unweighted,
    "weights of the wrong choice": swapped,
    "not regrouped": not_regrouped,
}
