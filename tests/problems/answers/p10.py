import torch

from problems.spec import Arguments


def sought(ranks: list[Arguments]) -> list[list[int]]:
    rows = len(ranks[0][1])
    return [sorted(indices.tolist(), key=lambda i: i // rows) for indices, _ in ranks]


def table(ranks: list[Arguments]) -> torch.Tensor:
    return torch.cat([shard for _, shard in ranks])


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    whole = table(ranks)
    return [torch.stack([whole[i] for i in ids]) for ids in sought(ranks)]


def as_asked(ranks: list[Arguments]) -> list[torch.Tensor]:
    return [table(ranks)[indices] for indices, _ in ranks]


def by_id(ranks: list[Arguments]) -> list[torch.Tensor]:
    return [table(ranks)[indices.sort().values] for indices, _ in ranks]


def from_the_own_shard(ranks: list[Arguments]) -> list[torch.Tensor]:
    return [
        torch.stack([shard[i % len(shard)] for i in ids]) for ids, (_, shard) in zip(sought(ranks), ranks, strict=True)
    ]


def own_rows_only(ranks: list[Arguments]) -> list[torch.Tensor]:
    rows = len(ranks[0][1])
    return [
        found * torch.tensor([i // rows == rank for i in ids])[:, None]
        for rank, (found, ids) in enumerate(zip(oracle(ranks), sought(ranks), strict=True))
    ]


def within_capacity(ranks: list[Arguments]) -> list[torch.Tensor]:
    # Room for an even share from every owner and a quarter more; what is beyond gets lost.
    rows, answers = len(ranks[0][1]), []
    for found, ids in zip(oracle(ranks), sought(ranks), strict=True):
        room = len(ids) * 5 // (4 * len(ranks))
        owners = [i // rows for i in ids]
        kept = [k - owners.index(owner) < room for k, owner in enumerate(owners)]
        answers.append(found * torch.tensor(kept)[:, None])
    return answers


WRONG = {
    "in the order asked for": as_asked,
    "sorted by id": by_id,
    "from the own shard": from_the_own_shard,
    "own rows only": own_rows_only,
    "room for a quarter more than an even share": within_capacity,
}
