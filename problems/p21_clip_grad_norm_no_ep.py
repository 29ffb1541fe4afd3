"""Clip sharded gradients by their global norm: every rank holds a shard of each gradient, all shards make one norm,
and if that is above a limit, all gradients are scaled down to it in place.

The end of every backward pass in FSDP training (VeOmni, without expert parallelism).
"""

import torch
import torch.distributed as dist

from problems.spec import Arguments, Case, Problem, RankContext, Subgroups, Work
from problems.training import limit, sizes_of_gradients


def reference(
    grad_tensors: list[torch.Tensor | None],
    max_norm: float,
    norm_type: float = 2.0,
    fsdp_group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Returns the norm before clipping, a 0-dim tensor of float32 (float64 for float64 gradients), the same on all
    ranks of the group. Results are also the gradients: they are scaled in place if, and only if, norm > max_norm.

    grad_tensors: this rank's shards, all of one dtype and of any sizes (they may differ in scale by orders of
        magnitude, between tensors and between ranks). None stands for a parameter without gradient; every rank has at
        least one tensor.
    max_norm: the same on all ranks. In some trials the norm is below it and the gradients must stay as they are.
    norm_type: p of the p-norm, 2.0 in all trials.
    fsdp_group: all ranks, here. None would mean that nothing is reduced.
    """
    grads = [grad for grad in grad_tensors if grad is not None]
    wide = torch.promote_types(grads[0].dtype, torch.float32)
    total = torch.stack(torch._foreach_norm(grads, norm_type, dtype=wide)).pow(norm_type).sum()
    if fsdp_group is not None:
        dist.all_reduce(total, group=fsdp_group)
    norm = total.pow(1.0 / norm_type)
    if norm > max_norm:
        torch._foreach_mul_(grads, (max_norm / norm).to(grads[0].dtype))
    return norm


def inputs(case: Case, ctx: RankContext) -> Arguments:
    m, n, count = case["m"], case["n"], case["tensors"]
    everyone = Subgroups((tuple(range(ctx.world_size)),))
    if case.name == "pkb":
        return [ctx.randn(m, n) for _ in range(count)], 1.0, 2.0, everyone
    sizes = sizes_of_gradients(ctx, ctx.world_size, count)
    own = sizes[ctx.rank].tolist()
    grads: list[torch.Tensor | None] = [(ctx.randn(m, n, dtype=torch.float32) * size).to(ctx.dtype) for size in own]
    grads.insert(1, None)  # a frozen parameter
    return grads, limit(case, ctx, float((m * n * sizes.square().sum()).sqrt())), 2.0, everyone


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    elements = case["m"] * case["n"] * case["tensors"]
    # Where some trials do not clip, their gradients are only read. The reference sends float32, but a candidate might
    # stay accurate enough with the run's dtype.
    clipped = case.name in ("pkb", "large")
    link = element_bytes if world_size > 1 else 0
    return Work(
        flops=(3 if clipped else 2) * elements,
        hbm_bytes=(2 if clipped else 1) * elements * element_bytes,
        link_out_bytes=link,
        link_in_bytes=link,
    )


PROBLEM = Problem(
    title="Clip sharded gradients by their global norm",
    family="fsdp_zero",
    source="VeOmni",
    tags=("norm", "all_reduce", "optimizer", "in_place"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024, "tensors": 3},
        "default": {"m": 1024, "n": 1024, "tensors": 3},
        # The feed-forward matrices (14336 x 4096) of 12 layers of Llama 3 8B, sharded over 8 ranks.
        "large": {"m": 1792, "n": 4096, "tensors": 36},
        "odd": {"m": 1031, "n": 517, "tensors": 5},
        "tiny": {"m": 14, "n": 40, "tensors": 3},
    },
    tolerance="rounding",
    repair=(
        "As published all gradients are standard normal, so their norm is known to 0.04% without reading them and "
        "every trial clips. By default gradients differ in size over two decades between tensors and ranks, the limit "
        "is drawn, and one trial in four does not clip."
    ),
    updates=(0,),
)
