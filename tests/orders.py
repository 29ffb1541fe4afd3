"""How ranks may add what they share: for tests of `harness.numerics`."""

from collections.abc import Iterable

import torch

Parts = list[torch.Tensor]


def in_order(parts: Iterable[torch.Tensor]) -> torch.Tensor:
    first, *others = parts
    total = first.clone()
    for part in others:
        total = total + part
    return total


def ring(parts: Parts) -> torch.Tensor:
    """As NCCL and gloo add: chunk c begins at rank c+1 and goes round, rounded at each hop."""
    world_size = len(parts)
    chunks = [part.reshape(-1).tensor_split(world_size) for part in parts]
    sums = [in_order(chunks[(c + 1 + s) % world_size][c] for s in range(world_size)) for c in range(world_size)]
    return torch.cat(sums).reshape(parts[0].shape)


def tree(parts: Parts) -> torch.Tensor:
    while len(parts) > 1:
        parts = [in_order(parts[i : i + 2]) for i in range(0, len(parts), 2)]
    return parts[0]
