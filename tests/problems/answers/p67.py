from collections.abc import Callable

import torch

from problems.spec import Arguments

TRIAL = {"nnz": 256, "features": 64, "nodes": 3000}

Answer = tuple[torch.Tensor, torch.Tensor]


def pushed(ranks: list[Arguments], owner: Callable[[torch.Tensor], torch.Tensor]) -> list[Answer]:
    idx, value = (torch.cat([own[i] for own in ranks]) for i in (0, 1))
    return [(idx[owner(idx) == rank], value[owner(idx) == rank]) for rank in range(len(ranks))]


def oracle(ranks: list[Arguments]) -> list[Answer]:
    return pushed(ranks, lambda idx: idx % len(ranks))


def by_range(ranks: list[Arguments]) -> list[Answer]:
    return pushed(ranks, lambda idx: idx // (ranks[0][2] // len(ranks)))


def backwards(ranks: list[Arguments]) -> list[Answer]:
    return oracle(ranks[::-1])


def sorted_by_index(ranks: list[Arguments]) -> list[Answer]:
    sorted_ranks = []
    for idx, *rest in ranks:
        order = idx.argsort(stable=True)
        sorted_ranks.append((idx[order], rest[0][order], *rest[1:]))
    return oracle(sorted_ranks)


def local_indices(ranks: list[Arguments]) -> list[Answer]:
    return [(idx // len(ranks), value) for idx, value in oracle(ranks)]


WRONG = {
    "owners by range": by_range,
    "sources in reverse order": backwards,
    "sorted by index": sorted_by_index,
    "indices made local": local_indices,
}
