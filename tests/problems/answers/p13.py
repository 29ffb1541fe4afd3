import torch

from problems.spec import Arguments
from tests.problems.answers.shared import everyone, summed_products


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return everyone(summed_products(ranks), ranks)


def own(ranks: list[Arguments]) -> list[torch.Tensor]:
    return [a @ b * len(ranks) for a, b in ranks]


WRONG = {"own product times the number of ranks": own}
