"""Gather: rank `dst` receives every rank's matrix, stacked on a new leading axis in rank order.

Saving a sharded checkpoint from one rank does this. Every rank but `dst` returns its input.
"""

import torch
import torch.distributed as dist

from problems.shared import root
from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(tensor: torch.Tensor, dst: int = 0) -> torch.Tensor:
    if dist.get_rank() != dst:
        dist.gather(tensor, dst=dst)
        return tensor
    stacked = tensor.new_empty(dist.get_world_size(), *tensor.shape)
    dist.gather(tensor, list(stacked.unbind(0)), dst=dst)
    return stacked


def inputs(case: Case, ctx: RankContext) -> Arguments:
    return ctx.randn(case["m"], case["n"]), root(case, ctx)


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    matrix = case["m"] * case["n"] * element_bytes
    return Work(
        # The root reads its own matrix and all of them are written into its memory.
        hbm_bytes=(1 + world_size) * matrix,
        link_out_bytes=matrix if world_size > 1 else 0,
        # All matrices differ, so the root's ingress is the bound whatever the switch can do.
        link_in_bytes=(world_size - 1) * matrix,
    )


PROBLEM = Problem(
    title="Collect every rank's matrix on one rank, stacked",
    family="collective",
    source="torch.distributed",
    tags=("gather", "rooted"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024},
        # On 8 ranks: the row shards of a 32768 x 8192 weight matrix, collected to be saved.
        "large": {"m": 4096, "n": 8192},
        "odd": {"m": 1031, "n": 517},
        "tiny": {"m": 14, "n": 40},
    },
    tolerance="exact",
)
