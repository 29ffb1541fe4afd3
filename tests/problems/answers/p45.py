import torch

from problems.spec import Arguments
from tests.problems.answers.shared import row_blocks, stack_of


def normed(flat: torch.Tensor, ranks: list[Arguments], eps: float | None = None) -> list[torch.Tensor]:
    """Rows of everybody, of which each rank has a block."""
    _, gamma, given = ranks[0]
    wide = torch.promote_types(flat.dtype, torch.float32)
    rows = flat.to(wide).reshape(-1, len(gamma))
    out = [row / (row.pow(2).mean() + (given if eps is None else eps)).sqrt() * gamma for row in rows]
    return row_blocks(torch.stack(out), len(ranks))


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return normed(stack_of(ranks).mean(0), ranks)


def of_the_sum(ranks: list[Arguments]) -> list[torch.Tensor]:
    return normed(stack_of(ranks).sum(0), ranks)


def without_epsilon(ranks: list[Arguments]) -> list[torch.Tensor]:
    return normed(stack_of(ranks).mean(0), ranks, eps=1e-30)


def without_gamma(ranks: list[Arguments]) -> list[torch.Tensor]:
    return oracle([(flat, torch.ones_like(gamma), eps) for flat, gamma, eps in ranks])


def mean_of_norms(ranks: list[Arguments]) -> list[torch.Tensor]:
    each = [normed(own[0], ranks) for own in ranks]
    return [torch.stack(blocks).mean(0) for blocks in zip(*each, strict=True)]


def next_block(ranks: list[Arguments]) -> list[torch.Tensor]:
    blocks = oracle(ranks)
    return blocks[1:] + blocks[:1]


WRONG = {
    "norm of the sum": of_the_sum,
    "without epsilon": without_epsilon,
    "without gamma": without_gamma,
    "norm before the mean": mean_of_norms,
    "the next rank's block": next_block,
}
TRIAL = {"rows": 64, "hidden": 128}
