"""What oracles of several problems are made of."""

import torch

from problems.spec import Arguments


def everyone(result: torch.Tensor, ranks: list[Arguments]) -> list[torch.Tensor]:
    return [result] * len(ranks)


def stack_of(ranks: list[Arguments]) -> torch.Tensor:
    """Every rank's first argument on a new leading axis."""
    return torch.stack([arguments[0] for arguments in ranks])


def row_blocks(total: torch.Tensor, world_size: int) -> list[torch.Tensor]:
    rows = total.shape[0] // world_size
    return [total[rank * rows : (rank + 1) * rows] for rank in range(world_size)]


def summed_products(ranks: list[Arguments]) -> torch.Tensor:
    """One product over the whole inner axis, instead of a sum of products."""
    return torch.cat([a for a, _ in ranks], dim=1) @ torch.cat([b for _, b in ranks], dim=0)
