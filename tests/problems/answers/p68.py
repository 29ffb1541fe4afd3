import torch

from problems.spec import Arguments

TRIAL = {"nodes": 3001, "queries": 256, "features": 96}


def fetched(ranks: list[Arguments]) -> list[torch.Tensor]:
    table = torch.cat([own[0] for own in ranks])
    return [table[own[1]] for own in ranks]


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return [rows @ own[2] for rows, own in zip(fetched(ranks), ranks, strict=True)]


def one_projection(ranks: list[Arguments]) -> list[torch.Tensor]:
    return [rows @ ranks[0][2] for rows in fetched(ranks)]


def projected_by_owner(ranks: list[Arguments]) -> list[torch.Tensor]:
    table = torch.cat([own[0] @ own[2] for own in ranks])
    return [table[own[1]] for own in ranks]


def interleaved(ranks: list[Arguments]) -> list[torch.Tensor]:
    """Id i taken for row i // W of rank i mod W."""
    table = torch.stack([own[0] for own in ranks], 1).flatten(0, 1)
    return [table[own[1]] @ own[2] for own in ranks]


def by_owner(ranks: list[Arguments]) -> list[torch.Tensor]:
    """Rows left in the order in which they come back."""
    return [
        rows[(own[1] // len(own[0])).argsort(stable=True)] @ own[2]
        for rows, own in zip(fetched(ranks), ranks, strict=True)
    ]


def unprojected(ranks: list[Arguments]) -> list[torch.Tensor]:
    return fetched(ranks)


WRONG = {
    "rank 0's projection for all": one_projection,
    "projected by the owner": projected_by_owner,
    "table divided row by row": interleaved,
    "in the owners' order": by_owner,
    "without projection": unprojected,
}
