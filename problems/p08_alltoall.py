"""All-to-all: slice d of a rank's stack goes to rank d, where slice s holds what rank s sent.

Expert parallelism sends tokens to their experts and back this way.
"""

import torch
import torch.distributed as dist

from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(tensor: torch.Tensor) -> torch.Tensor:
    received = torch.empty_like(tensor)
    dist.all_to_all_single(received, tensor)
    return received


def inputs(case: Case, ctx: RankContext) -> Arguments:
    return (ctx.randn(ctx.world_size, case["m"], case["n"]),)


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    matrix = case["m"] * case["n"] * element_bytes
    # Every slice has one reader, so no help from a switch: all but the own slice leave, as many arrive.
    link = (world_size - 1) * matrix
    return Work(hbm_bytes=2 * world_size * matrix, link_out_bytes=link, link_in_bytes=link)


PROBLEM = Problem(
    title="Transpose a stack of matrices across ranks",
    family="collective",
    source="torch.distributed",
    tags=("all_to_all",),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024},
        # Expert dispatch at DeepSeek-V3's hidden size, 7168, with 2048 tokens for each peer.
        "large": {"m": 2048, "n": 7168},
        "odd": {"m": 1031, "n": 517},
        "tiny": {"m": 14, "n": 40},
    },
    tolerance="exact",
)
