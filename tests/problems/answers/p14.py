import torch

from problems.spec import Arguments
from tests.problems.answers.shared import everyone


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return everyone(torch.cat([torch.einsum("ik,kj->ij", a, b) for a, b in ranks], dim=1), ranks)


def own(ranks: list[Arguments]) -> list[torch.Tensor]:
    return [torch.cat([a @ b] * len(ranks), dim=1) for a, b in ranks]


def stacked(ranks: list[Arguments]) -> list[torch.Tensor]:
    blocks = torch.stack([a @ b for a, b in ranks])
    return everyone(blocks.reshape(blocks.shape[1], -1), ranks)


def interleaved(ranks: list[Arguments]) -> list[torch.Tensor]:
    return everyone(torch.stack([a @ b for a, b in ranks], dim=2).flatten(1), ranks)


def own_first(ranks: list[Arguments]) -> list[torch.Tensor]:
    return [oracle(ranks[rank:] + ranks[:rank])[0] for rank in range(len(ranks))]


WRONG = {
    "own columns only": own,
    "blocks as they arrive": stacked,
    "ranks' columns interleaved": interleaved,
    "own block first": own_first,
}
