import torch

from problems.spec import Arguments

TRIAL = {"per_rank": 3000}


def divided(values: torch.Tensor, size: int) -> list[torch.Tensor]:
    return list(values.tensor_split(size))


def joined(ranks: list[Arguments]) -> torch.Tensor:
    return torch.cat([shard for shard, _ in ranks])


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return divided(joined(ranks).sort().values, len(ranks))


def descending(ranks: list[Arguments]) -> list[torch.Tensor]:
    return divided(joined(ranks).sort(descending=True).values, len(ranks))


def reversed_ranks(ranks: list[Arguments]) -> list[torch.Tensor]:
    """Each shard sorted, last rank first: right as published."""
    return divided(torch.cat([shard.sort().values for shard, _ in ranks[::-1]]), len(ranks))


def unsorted(ranks: list[Arguments]) -> list[torch.Tensor]:
    return divided(joined(ranks), len(ranks))


def repeats_dropped(ranks: list[Arguments]) -> list[torch.Tensor]:
    values = joined(ranks).unique()
    missing = len(joined(ranks)) - len(values)
    return divided(torch.cat([values, values[-1:].expand(missing)]), len(ranks))


WRONG = {
    "descending": descending,
    "shards sorted, ranks reversed": reversed_ranks,
    "not sorted": unsorted,
    "repeats dropped": repeats_dropped,
}
