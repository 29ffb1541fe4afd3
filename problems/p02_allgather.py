"""All-gather: every rank receives every rank's matrix, stacked on a new leading axis in rank order.

Sharded training gathers a layer's weights this way before use; sequence parallelism gathers activations.
"""

import torch
import torch.distributed as dist

from problems.spec import Arguments, Case, Problem, RankContext, Work

# torch 2.13 renamed the call and warns on every use of the old name; earlier versions know only that.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def reference(tensor: torch.Tensor) -> torch.Tensor:
    stacked = tensor.new_empty(dist.get_world_size(), *tensor.shape)
    all_gather(stacked, tensor[None])  # gloo takes concatenated shapes only
    return stacked


def inputs(case: Case, ctx: RankContext) -> Arguments:
    return (ctx.randn(case["m"], case["n"]),)


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    matrix = case["m"] * case["n"] * element_bytes
    return Work(
        hbm_bytes=(1 + world_size) * matrix,
        # With multicast the own matrix leaves once; the others still arrive one by one.
        link_out_bytes=matrix if world_size > 1 else 0,
        link_in_bytes=(world_size - 1) * matrix,
    )


PROBLEM = Problem(
    title="Collect every rank's matrix on every rank, stacked",
    family="collective",
    source="torch.distributed",
    tags=("all_gather",),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024},
        # 4096 tokens per rank at hidden size 8192: sequence-parallel activations of a 32k-token prefill on 8 ranks.
        "large": {"m": 4096, "n": 8192},
        "odd": {"m": 1031, "n": 517},
        "tiny": {"m": 14, "n": 40},
    },
    tolerance="exact",
)
