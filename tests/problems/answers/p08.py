import torch

from problems.spec import Arguments
from tests.problems.answers.shared import stack_of


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return list(stack_of(ranks).transpose(0, 1).unbind(0))


def unchanged(ranks: list[Arguments]) -> list[torch.Tensor]:
    return list(stack_of(ranks).unbind(0))


WRONG = {"the input as it is": unchanged}
