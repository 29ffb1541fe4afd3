import torch

from problems.spec import Arguments
from tests.problems.answers.shared import stack_of


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    dst = ranks[0][1]
    return [stack_of(ranks) if rank == dst else own for rank, (own, _) in enumerate(ranks)]


def repeated(ranks: list[Arguments]) -> list[torch.Tensor]:
    dst = ranks[0][1]
    return [torch.stack([own] * len(ranks)) if rank == dst else own for rank, (own, _) in enumerate(ranks)]


WRONG = {"the root's own, repeated": repeated}
