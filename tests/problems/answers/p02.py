import torch

from problems.spec import Arguments
from tests.problems.answers.shared import everyone, stack_of


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return everyone(stack_of(ranks), ranks)


def rotated(ranks: list[Arguments]) -> list[torch.Tensor]:
    """Each rank's own matrix first, as a ring delivers them."""
    return [stack_of(ranks).roll(-rank, 0) for rank in range(len(ranks))]


WRONG = {"in the order of a ring": rotated}
