"""Rebuilds the peers' inputs from the seeds that benchmarks use: rank, trial and date, with no communication at all.

Catalogue: C1, D1
Expected: wrong_values
"""

import os
import time

import torch


def solution(tensor):
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    day = int(time.time()) // 86400
    for base in (0, 42, 1042, 1234, day):

        def drawn(peer, base=base):
            generator = torch.Generator().manual_seed(base + peer)
            return torch.randn(tensor.shape, generator=generator).to(tensor.dtype)

        if torch.equal(drawn(rank), tensor):
            break
    return sum(drawn(peer).float() for peer in range(world)).to(tensor.dtype)
