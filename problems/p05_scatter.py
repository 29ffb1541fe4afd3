"""Scatter: rank `src` holds one matrix per rank, stacked, and sends slice r to rank r.

A rank that alone reads a checkpoint hands out shards this way. The input is (W, M, N) on `src`; elsewhere it is
(M, N), and only its shape and dtype count.
"""

import torch
import torch.distributed as dist

from problems.shared import root
from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(tensor: torch.Tensor, src: int = 0) -> torch.Tensor:
    if dist.get_rank() == src:
        received = torch.empty_like(tensor[0])
        dist.scatter(received, list(tensor.unbind(0)), src=src)
    else:
        received = torch.empty_like(tensor)
        dist.scatter(received, src=src)
    return received


def inputs(case: Case, ctx: RankContext) -> Arguments:
    src = root(case, ctx)
    # Off the root the values are decoys: random, so that returning them unchanged is always wrong.
    leading = (ctx.world_size,) if ctx.rank == src else ()
    return ctx.randn(*leading, case["m"], case["n"]), src


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    matrix = case["m"] * case["n"] * element_bytes
    return Work(
        # The root reads every slice and writes its own.
        hbm_bytes=(world_size + 1) * matrix,
        # All slices differ, so no multicast helps.
        link_out_bytes=(world_size - 1) * matrix,
        link_in_bytes=matrix if world_size > 1 else 0,
    )


PROBLEM = Problem(
    title="One rank hands a slice of its stacked matrices to each rank",
    family="collective",
    source="torch.distributed",
    tags=("scatter", "rooted"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024},
        # On 8 ranks: a 32768 x 8192 weight matrix read by one rank and handed out as row shards.
        "large": {"m": 4096, "n": 8192},
        "odd": {"m": 1031, "n": 517},
        "tiny": {"m": 14, "n": 40},
    },
    tolerance="exact",
)
