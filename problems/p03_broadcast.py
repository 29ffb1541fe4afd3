"""Broadcast: every rank receives a copy of the matrix of rank `src`.

It starts training from one rank's weights and hands freshly trained weights to inference ranks.
"""

import torch
import torch.distributed as dist

from problems.shared import root
from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(tensor: torch.Tensor, src: int = 0) -> torch.Tensor:
    received = tensor.clone()
    dist.broadcast(received, src=src)
    return received


def inputs(case: Case, ctx: RankContext) -> Arguments:
    return ctx.randn(case["m"], case["n"]), root(case, ctx)


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    matrix = case["m"] * case["n"] * element_bytes
    # With multicast the root sends once; every other rank receives once.
    link = matrix if world_size > 1 else 0
    # The root is busiest: it reads its matrix and writes its own fresh copy.
    return Work(hbm_bytes=2 * matrix, link_out_bytes=link, link_in_bytes=link)


PROBLEM = Problem(
    title="Copy one rank's matrix to all ranks",
    family="collective",
    source="torch.distributed",
    tags=("broadcast", "rooted"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024},
        # One attention output projection of Llama 3 70B, sent from the trainer to the inference ranks.
        "large": {"m": 8192, "n": 8192},
        "odd": {"m": 1031, "n": 517},
        "tiny": {"m": 14, "n": 40},
    },
    tolerance="exact",
)
