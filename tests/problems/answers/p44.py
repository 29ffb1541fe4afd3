import torch

from problems.spec import Arguments
from tests.problems.answers.shared import everyone, stack_of

TRIAL = {"n": 20_000, "block": 128}


def rounded(x: torch.Tensor, size: int) -> torch.Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    pieces = []
    for block in wide.split(size):
        step = max(float(block.abs().max()), 1e-8) / 127
        pieces.append(torch.round(block / step) * step)
    return torch.cat(pieces)


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return everyone(sum(rounded(x, size) for x, size in ranks) / len(ranks), ranks)


def unrounded(ranks: list[Arguments]) -> list[torch.Tensor]:
    return everyone(stack_of(ranks).double().mean(0), ranks)


def summed(ranks: list[Arguments]) -> list[torch.Tensor]:
    return [own * len(ranks) for own in oracle(ranks)]


def one_scale(ranks: list[Arguments]) -> list[torch.Tensor]:
    return oracle([(x, x.numel()) for x, _ in ranks])


def rounded_mean(ranks: list[Arguments]) -> list[torch.Tensor]:
    mean = stack_of(ranks).double().mean(0)
    return everyone(rounded(mean, ranks[0][1]), ranks)


def half_blocks(ranks: list[Arguments]) -> list[torch.Tensor]:
    return oracle([(x, size // 2) for x, size in ranks])


WRONG = {
    "not rounded": unrounded,
    "sum": summed,
    "one scale for all": one_scale,
    "rounded after the sum": rounded_mean,
    "smaller blocks": half_blocks,
}
NEEDLESS = {"int8 on the wire, a scale per 32 values": "it was int8 before, in coarser blocks: little is lost again"}
