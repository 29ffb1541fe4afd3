"""Reduce: rank `dst` receives the elementwise sum of all ranks' matrices; every other rank returns a copy of its own.

Optimisers that give each parameter to one owner reduce its gradient this way.
"""

import torch
import torch.distributed as dist

from problems.shared import root
from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(tensor: torch.Tensor, dst: int = 0) -> torch.Tensor:
    total = tensor.clone()
    pending = dist.reduce(total, dst=dst, async_op=True)
    # Off the root the backend may leave partial sums in its buffer (gloo does), so return a copy made meanwhile.
    result = total if dist.get_rank() == dst else tensor.clone()
    pending.wait()
    return result


def inputs(case: Case, ctx: RankContext) -> Arguments:
    return ctx.randn(case["m"], case["n"]), root(case, ctx)


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    elements = case["m"] * case["n"]
    matrix = elements * element_bytes
    # If the switch adds, `dst` receives one sum; every other rank must still send its own values once.
    link = matrix if world_size > 1 else 0
    return Work(
        flops=elements * (world_size - 1) / world_size,
        # On every rank alike: one matrix read, one matrix (the sum or the copy) written.
        hbm_bytes=2 * matrix,
        link_out_bytes=link,
        link_in_bytes=link,
    )


PROBLEM = Problem(
    title="Sum one matrix over all ranks onto one rank",
    family="collective",
    source="torch.distributed",
    tags=("reduce", "rooted"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024},
        # The gradient of one 8192 x 8192 attention projection of Llama 3 70B, summed onto the rank that owns it.
        "large": {"m": 8192, "n": 8192},
        "odd": {"m": 1031, "n": 517},
        "tiny": {"m": 14, "n": 40},
    },
    tolerance="rounding",
)
