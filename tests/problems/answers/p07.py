import torch

from problems.spec import Arguments
from tests.problems.answers.shared import row_blocks, stack_of


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return row_blocks(stack_of(ranks).sum(0), len(ranks))


def mean(ranks: list[Arguments]) -> list[torch.Tensor]:
    return row_blocks(stack_of(ranks).mean(0), len(ranks))


WRONG = {"mean instead of sum": mean}
