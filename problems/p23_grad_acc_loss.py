"""Losses weighted by token counts, summed over ranks, and their gradients, written out by hand.

Sequence-parallel training: each rank has seen a part of every sequence and holds the mean loss over its own valid
tokens; together the ranks make one loss per sequence (VeOmni, loss reduction under gradient accumulation).
"""

import torch
import torch.distributed as dist

from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(
    loss: torch.Tensor,
    local_valid_tokens: torch.Tensor,
    global_valid_tokens: torch.Tensor,
    grad_normalized_loss: torch.Tensor,
    grad_loss_sum: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """All arguments and results have one shape: (sequences,), or () for a single loss. Everything is elementwise.

    loss: this rank's mean loss over its valid tokens of each sequence. NaN (a mean over nothing) or any other value
        where the rank has none; then it counts as 0.
    local_valid_tokens: int64, valid tokens on this rank, 0 at many places.
    global_valid_tokens: int64, valid tokens on all ranks, at least 1, the same on all ranks.
    grad_normalized_loss, grad_loss_sum: this rank's upstream gradients of the first two results, in the dtype of
        `loss`. No second one means 0.

    Returns, in the dtype of `loss`: each sequence's loss summed over all tokens of all ranks, divided by their number;
    that sum; and the gradient with respect to this rank's `loss`, which takes no communication.
    """
    finite = torch.where(local_valid_tokens == 0, loss.nan_to_num(), loss)
    loss_sum = finite * local_valid_tokens
    dist.all_reduce(loss_sum)
    grad_loss = grad_normalized_loss * local_valid_tokens / global_valid_tokens
    if grad_loss_sum is not None:
        grad_loss = grad_loss + grad_loss_sum * local_valid_tokens
    return loss_sum / global_valid_tokens, loss_sum, grad_loss


def inputs(case: Case, ctx: RankContext) -> Arguments:
    if case.name == "pkb":
        scalar = torch.ones((), dtype=ctx.dtype, device=ctx.device)
        tokens = torch.tensor(case["tokens"], device=ctx.device)
        return ctx.randn(), tokens, tokens * ctx.world_size, scalar, torch.zeros_like(scalar)
    count, width = case["sequences"], case["tokens"]
    # Of each sequence the prompt is not valid and it ends before `width`; every rank has a stretch of the same length.
    common = ctx.shared()
    starts = common.uniform(count, high=0.4, dtype=torch.float64) * width
    ends = starts + 1 + common.uniform(count, dtype=torch.float64) ** 0.5 * (width - starts - 1)
    starts, ends = starts.long(), ends.long()
    edges = [width * rank // ctx.world_size for rank in range(ctx.world_size + 1)]
    first, last = edges[ctx.rank : ctx.rank + 2]
    local = (ends.clamp(first, last) - starts.clamp(first, last)).clamp_min(0)
    # Sequences are easy or hard on all ranks. Positive: sums over ranks must not cancel.
    loss = common.uniform(count, low=0.3, high=6, dtype=torch.float32) * ctx.uniform(
        count, low=0.5, high=1.5, dtype=torch.float32
    )
    loss[local == 0] = float("nan")
    # Both terms of the gradient are of order one.
    upstream = ctx.randn(count, dtype=torch.float32) * ctx.world_size
    upstream_sum = ctx.randn(count, dtype=torch.float32) * ctx.world_size / width
    return loss.to(ctx.dtype), local, ends - starts, upstream.to(ctx.dtype), upstream_sum.to(ctx.dtype)


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    count = 1 if case.name == "pkb" else case["sequences"]
    link = count * element_bytes if world_size > 1 else 0
    # A loss without tokens need not be read or sent. Some rank has tokens of at least nine sequences in ten.
    return Work(
        # Weigh, add, divide; two products, a quotient and a sum for the gradient.
        flops=6 * count,
        # Two or three floats and two counts in, three floats out.
        hbm_bytes=count * (5 * element_bytes + 16),
        link_out_bytes=link if case.name == "pkb" else 0.9 * link,
        link_in_bytes=link,
    )


PROBLEM = Problem(
    title="Token-weighted losses over all ranks and their gradients",
    family="data",
    source="VeOmni",
    tags=("loss", "all_reduce"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"tokens": 1048576},
        # One step's sequences: responses of up to 2048 tokens.
        "default": {"sequences": 1024, "tokens": 2048},
        # No system has so many sequences in a step; a message of 16 MB shows more than latency.
        "large": {"sequences": 8388608, "tokens": 2048},
        "odd": {"sequences": 1031, "tokens": 1777},
        "tiny": {"sequences": 100, "tokens": 200},
    },
    tolerance="rounding",
    repair=(
        "As published there is one number, all ranks have the same number of tokens (so a plain mean will do), no rank "
        "is without tokens, and the gradient is 1/world size. By default there is a loss for each of many sequences, "
        "which are cut over the ranks, so that many ranks have no token of a sequence and a loss that is NaN; upstream "
        "gradients are drawn."
    ),
    changing=(0, 3, 4),
    few=True,
)
