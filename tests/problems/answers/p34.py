import torch

from problems.spec import Arguments
from tests.problems.answers.shared import everyone


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return everyone(torch.cat([x for (x,) in ranks]), ranks)


def reversed_(ranks: list[Arguments]) -> list[torch.Tensor]:
    return oracle(ranks[::-1])


def interleaved(ranks: list[Arguments]) -> list[torch.Tensor]:
    return everyone(torch.stack([x for (x,) in ranks], dim=1).flatten(0, 1), ranks)


WRONG = {"blocks in reverse order": reversed_, "rows interleaved": interleaved}
