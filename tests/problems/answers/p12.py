import torch

from problems.spec import Arguments


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    a = torch.cat([shard for shard, _ in ranks], dim=1)
    return [torch.einsum("ik,kj->ij", a, b) for _, b in ranks]


def own(ranks: list[Arguments]) -> list[torch.Tensor]:
    return [shard @ b.chunk(len(ranks))[rank] for rank, (shard, b) in enumerate(ranks)]


def rotated(ranks: list[Arguments]) -> list[torch.Tensor]:
    # Every rank's own shard first.
    order = [ranks[rank:] + ranks[:rank] for rank in range(len(ranks))]
    return [torch.cat([shard for shard, _ in own], dim=1) @ b for own, (_, b) in zip(order, ranks, strict=True)]


def replicated(ranks: list[Arguments]) -> list[torch.Tensor]:
    return oracle([(shard, ranks[0][1]) for shard, _ in ranks])


WRONG = {"own shard's part": own, "own shard first": rotated, "rank 0's B everywhere": replicated}
