import torch

from problems.spec import Arguments


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    x = torch.cat([shard for shard, _, _ in ranks], dim=1)
    blocks = []
    for rows, (_, w1, w2) in zip(x.chunk(len(ranks)), ranks, strict=True):
        z = rows @ w1
        blocks.append(z * torch.sigmoid(z) @ w2)
    return blocks


def without_silu(ranks: list[Arguments]) -> list[torch.Tensor]:
    x = torch.cat([shard for shard, _, _ in ranks], dim=1)
    return [rows @ w1 @ w2 for rows, (_, w1, w2) in zip(x.chunk(len(ranks)), ranks, strict=True)]


def with_relu(ranks: list[Arguments]) -> list[torch.Tensor]:
    x = torch.cat([shard for shard, _, _ in ranks], dim=1)
    return [(rows @ w1).relu() @ w2 for rows, (_, w1, w2) in zip(x.chunk(len(ranks)), ranks, strict=True)]


def summed(ranks: list[Arguments]) -> list[torch.Tensor]:
    # As a row-parallel second layer would.
    return [block * len(ranks) for block in oracle(ranks)]


def first_block(ranks: list[Arguments]) -> list[torch.Tensor]:
    return [oracle(ranks)[0]] * len(ranks)


WRONG = {
    "without SiLU": without_silu,
    "ReLU for SiLU": with_relu,
    "summed over ranks": summed,
    "row block 0 everywhere": first_block,
}
