"""Sum the gradients of LoRA adapters that all ranks of an expert-parallel group share, in place.

The last step of the backward pass of a grouped GEMM with LoRA under expert parallelism: each rank has computed the
gradients that its own experts give (VeOmni).
"""

import torch
import torch.distributed as dist

from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(
    grad_fc1_1_lora_A: torch.Tensor,
    grad_fc1_2_lora_A: torch.Tensor,
    grad_fc2_lora_B: torch.Tensor,
    group: dist.ProcessGroup | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Every argument is overwritten by its sum over all ranks of the group (None: all ranks), and returned.

    grad_fc1_1_lora_A, grad_fc1_2_lora_A: (rank, width), this rank's.
    grad_fc2_lora_B: (width, rank), this rank's.
    """
    grads = (grad_fc1_1_lora_A, grad_fc1_2_lora_A, grad_fc2_lora_B)
    for grad in grads:
        dist.all_reduce(grad, group=group)
    return grads


def inputs(case: Case, ctx: RankContext) -> Arguments:
    rank, width = case["rank"], case["width"]
    return ctx.randn(rank, width), ctx.randn(rank, width), ctx.randn(width, rank), None


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    elements = 3 * case["rank"] * case["width"]
    # With a switch that adds and multicasts, one copy leaves each rank and one sum arrives.
    link = elements * element_bytes if world_size > 1 else 0
    return Work(
        flops=elements * (world_size - 1) / world_size,
        hbm_bytes=2 * elements * element_bytes,
        link_out_bytes=link,
        link_in_bytes=link,
    )


PROBLEM = Problem(
    title="Sum three LoRA gradients over the expert-parallel group in place",
    family="expert",
    source="VeOmni",
    tags=("all_reduce", "moe", "in_place"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"rank": 8, "width": 1024},
        # Adapters of rank 64 in all 94 layers of Qwen3-235B-A22B (hidden size 4096), in one tensor.
        "large": {"rank": 6016, "width": 4096},
        "odd": {"rank": 7, "width": 1031},
        "tiny": {"rank": 3, "width": 70},
    },
    tolerance="rounding",
    updates=(0, 1, 2),
)
