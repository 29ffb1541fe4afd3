import torch

from problems.spec import Arguments
from tests.problems.answers.p31 import dense, wrong


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    experts = ranks[0][6]
    results = []
    for first in range(0, len(ranks), experts):
        results += dense(ranks[first : first + experts])
    return results


def across_blocks(ranks: list[Arguments]) -> list[torch.Tensor]:
    """Experts spread over all ranks, as if there were one block."""
    experts = ranks[0][6]
    return dense(ranks, owner=lambda x, rank: (x * len(ranks) // experts + (experts == len(ranks))) % len(ranks))


# Of the copies of an expert, those of the first block.
WRONG = wrong(owner=lambda x, rank: x) | {"experts spread over all ranks": across_blocks}
