import torch

from problems.spec import Arguments
from tests.problems.answers.shared import everyone


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return everyone(ranks[ranks[0][1]][0], ranks)


def next_root(ranks: list[Arguments]) -> list[torch.Tensor]:
    return everyone(ranks[(ranks[0][1] + 1) % len(ranks)][0], ranks)


WRONG = {"another root": next_root}
