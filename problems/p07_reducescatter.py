"""Reduce-scatter: the ranks' matrices are summed and rank r keeps row block r of the sum.

Sharded training reduces gradients this way; sequence parallelism uses it in place of the all-reduce.
"""

import torch
import torch.distributed as dist

from problems.spec import Arguments, Case, Problem, RankContext, Work

# torch 2.13 renamed the call and warns on every use of the old name; earlier versions know only that.
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def reference(tensor: torch.Tensor) -> torch.Tensor:
    block = tensor.new_empty(tensor.shape[0] // dist.get_world_size(), *tensor.shape[1:])
    reduce_scatter(block, tensor)
    return block


def inputs(case: Case, ctx: RankContext) -> Arguments:
    return (ctx.randn(ctx.world_size * case["m"], case["n"]),)


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    elements = case["m"] * case["n"]
    block = elements * element_bytes
    return Work(
        flops=(world_size - 1) * elements,
        hbm_bytes=(world_size + 1) * block,
        # Every foreign block must leave; if the switch adds, only the finished own block arrives.
        link_out_bytes=(world_size - 1) * block,
        link_in_bytes=block if world_size > 1 else 0,
    )


PROBLEM = Problem(
    title="Sum a matrix over ranks and keep one row block per rank",
    family="collective",
    source="torch.distributed",
    tags=("reduce_scatter",),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024},
        # 2048 tokens per rank at hidden size 8192: the partial sums of a 16k-token sequence on 8 ranks.
        "large": {"m": 2048, "n": 8192},
        "odd": {"m": 1031, "n": 517},
        "tiny": {"m": 14, "n": 40},
    },
    tolerance="rounding",
)
