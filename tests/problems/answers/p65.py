import torch

from problems.spec import Arguments

TRIAL = {"rows_per_pair": 64, "features": 128}


def chunk(own: Arguments, i: int) -> torch.Tensor:
    """What a rank sends to the one at distance i."""
    features, ids, _, counts, _ = own
    return features[ids[sum(counts[:i]) : sum(counts[: i + 1])]]


def by_distance(ranks: list[Arguments], sign: int) -> list[torch.Tensor]:
    size = len(ranks)
    return [
        torch.cat([chunk(ranks[(r + sign * i) % size], (-sign * i) % size) for i in range(size)]) for r in range(size)
    ]


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return by_distance(ranks, 1)


def by_rank(ranks: list[Arguments]) -> list[torch.Tensor]:
    size = len(ranks)
    return [torch.cat([chunk(ranks[s], (r - s) % size) for s in range(size)]) for r in range(size)]


def unrotated(ranks: list[Arguments]) -> list[torch.Tensor]:
    """Chunk i taken for rank i."""
    return [torch.cat([chunk(own, r) for own in ranks]) for r in range(len(ranks))]


def no_gather(ranks: list[Arguments]) -> list[torch.Tensor]:
    return oracle([(features, torch.arange(len(ids)) % len(features), *rest) for features, ids, *rest in ranks])


WRONG = {"received in rank order": by_rank, "chunk i to rank i": unrotated, "rows as stored": no_gather}
