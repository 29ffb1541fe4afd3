import torch

from problems.spec import Arguments
from tests.problems.answers.shared import everyone


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return list(ranks[ranks[0][1]][0].unbind(0))


def same_slice(ranks: list[Arguments]) -> list[torch.Tensor]:
    return everyone(ranks[ranks[0][1]][0][0], ranks)


WRONG = {"the first slice for everybody": same_slice}
