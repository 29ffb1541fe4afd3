from typing import Any

import torch

from problems.spec import Arguments


def sent(mask: torch.Tensor) -> list[tuple[int, int]]:
    """(expert, token) of each row."""
    experts, slots, tokens = mask.shape
    return [(x, t) for x in range(experts) for t in range(tokens) if any(mask[x, slot, t] for slot in range(slots))]


def dispatched(ranks: list[Arguments], key: Any) -> list[Any]:
    """`key(expert, source, token)` says in which order a rank has its rows."""
    experts, size = ranks[0][2], len(ranks)
    rows = [(x, source, t) for source, own in enumerate(ranks) for x, t in sent(own[1])]
    found = []
    for rank, (hidden, mask, *_) in enumerate(ranks):
        mine = sorted((row for row in rows if row[0] * size // experts == rank), key=lambda row: key(*row))
        got = torch.stack([ranks[source][0][t] for _, source, t in mine]) if mine else hidden[:0]
        found.append((got, mask.amax(1), torch.tensor([t for _, t in sent(mask)]), tuple(hidden.shape)))
    return found


def oracle(ranks: list[Arguments]) -> list[Any]:
    return dispatched(ranks, lambda expert, source, token: (expert, source, token))


def as_arrived(ranks: list[Arguments]) -> list[Any]:
    return dispatched(ranks, lambda expert, source, token: (source, expert, token))


def by_token(ranks: list[Arguments]) -> list[Any]:
    return dispatched(ranks, lambda expert, source, token: (expert, token, source))


def unpermuted(ranks: list[Arguments]) -> list[Any]:
    right = oracle(ranks)
    return [(rows, chosen, permutation.sort().values, shape) for rows, chosen, permutation, shape in right]


WRONG = {"not regrouped": as_arrived, "tokens before sources": by_token, "permutation by token": unpermuted}
