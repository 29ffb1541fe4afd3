"""Adam on a rank's part of the parameters, then all ranks gather the updated parameters.

The end of a step with a distributed optimiser (FSDP, Megatron-LM): gradients have been reduced already.
"""

import torch
import torch.distributed as dist

from problems.spec import Arguments, Case, Problem, RankContext, Work
from problems.training import adam_arguments, moments, sizes_of_moments

# torch 2.13 renames the call and warns about the old name.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def reference(
    grad_shard: torch.Tensor,
    master_shard: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    step: int,
) -> torch.Tensor:
    """Everything is of one dtype and stays in it; no argument is changed, and the new moments are not returned.

    grad_shard, master_shard, exp_avg, exp_avg_sq: (part,): of this rank's part, the gradient (used as it is),
        parameters and Adam's moments before the step.
    lr, beta1, beta2, eps, step: Adam's, the same on all ranks; step >= 1 counts this one. No weight decay.

    Returns all ranks' updated parameters in the order of ranks, (world size * part,), the same on all ranks.
    """
    m = (exp_avg * beta1).add_(grad_shard, alpha=1.0 - beta1)
    v = (exp_avg_sq * beta2).addcmul_(grad_shard, grad_shard, value=1.0 - beta2)
    denominator = v.div_(1.0 - beta2**step).sqrt_().add_(eps)
    updated = master_shard - m.div_(1.0 - beta1**step).div_(denominator).mul_(lr)
    gathered = updated.new_empty(dist.get_world_size() * updated.numel())
    all_gather(gathered, updated)
    return gathered


def inputs(case: Case, ctx: RankContext) -> Arguments:
    part, hyper = case["part"], adam_arguments(case, ctx)
    if case.name == "pkb":
        sizes = torch.ones((), device=ctx.device)
        return ctx.randn(part), ctx.randn(part), *moments(case, ctx, hyper, sizes, part), *hyper
    sizes = sizes_of_moments(ctx, part)
    grad = ctx.randn(part, dtype=torch.float32) * sizes
    weights = ctx.randn(part, dtype=torch.float32) * 0.1
    return grad.to(ctx.dtype), weights.to(ctx.dtype), *moments(case, ctx, hyper, sizes, part), *hyper


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    part = case["part"]
    # Moments that are known to be 0 need not be read.
    read = (2 if case.name == "pkb" else 4) * part
    several = world_size > 1
    return Work(
        flops=13 * part,
        hbm_bytes=(read + world_size * part) * element_bytes,
        # One copy for all others, if a switch multicasts.
        link_out_bytes=several * part * element_bytes,
        link_in_bytes=(world_size - 1) * part * element_bytes,
    )


PROBLEM = Problem(
    title="Adam on a shard, then all-gather of the updated parameters",
    family="fsdp_zero",
    source="Megatron-LM",
    tags=("optimizer", "all_gather"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"part": 4096},
        "default": {"part": 4096},
        # One layer of Llama 3 8B (218 million parameters) over 8 ranks.
        "large": {"part": 27264000},
        "odd": {"part": 4099},
        "tiny": {"part": 130},
    },
    tolerance="rounding",
    repair=(
        "As published a step moves the parameters by less than the published tolerance, so that gathering them as they "
        "were passes, and moments are zeros. By default moments are those of a few steps, gradients span two decades, "
        "and rates make every part of the update visible."
    ),
)
