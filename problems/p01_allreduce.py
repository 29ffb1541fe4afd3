"""All-reduce: every rank receives the elementwise sum of all ranks' matrices.

It closes every row-parallel layer of tensor parallelism and every step of data-parallel training.
"""

import torch
import torch.distributed as dist

from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(tensor: torch.Tensor) -> torch.Tensor:
    total = tensor.clone()
    dist.all_reduce(total)
    return total


def inputs(case: Case, ctx: RankContext) -> Arguments:
    return (ctx.randn(case["m"], case["n"]),)


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    elements = case["m"] * case["n"]
    matrix = elements * element_bytes
    # Even if the switch adds and multicasts, a rank's own values must leave once and the sum of the others must arrive.
    link = matrix if world_size > 1 else 0
    return Work(
        flops=elements * (world_size - 1) / world_size,
        hbm_bytes=2 * matrix,
        link_out_bytes=link,
        link_in_bytes=link,
    )


PROBLEM = Problem(
    title="Sum one matrix over all ranks, result on all",
    family="collective",
    source="torch.distributed",
    tags=("all_reduce",),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024},
        # 8192 tokens of prefill at hidden size 8192 (Llama 3 70B): the sum after each attention and MLP block.
        "large": {"m": 8192, "n": 8192},
        "odd": {"m": 1031, "n": 517},
        "tiny": {"m": 14, "n": 40},
    },
    tolerance="rounding",
)
