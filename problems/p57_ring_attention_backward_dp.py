"""Backward pass of ring attention over context-parallel ranks, then averaged over data-parallel replicas.

Keys and values go round the ring once more, and with each block go its gradients, to which every rank adds its part,
until they are home. Rank r is context-parallel rank r % cp of replica r // cp (Megatron's order).
"""

import torch
import torch.distributed as dist

from problems.attention import (
    across,
    draw_causal,
    draw_keys_and_values,
    draw_queries,
    draw_scale,
    halves,
    maybe_causal,
    neighbours,
    pairs,
    sizes,
)
from problems.spec import Arguments, Case, Problem, RankContext, Work


def pass_on(tensor: torch.Tensor, group: dist.ProcessGroup | None) -> tuple[torch.Tensor, list[dist.Work]]:
    """Send to the next rank of the ring; what comes from the previous is there when the transfers are waited for."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    arriving = torch.empty_like(tensor)
    send = dist.P2POp(dist.isend, tensor, group=group, group_peer=(rank + 1) % ranks)
    receive = dist.P2POp(dist.irecv, arriving, group=group, group_peer=(rank - 1) % ranks)
    return arriving, dist.batch_isend_irecv([send, receive])


def reference(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    softmax_lse: torch.Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    cp_group: dist.ProcessGroup | None = None,
    dp_group: dist.ProcessGroup | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dout, q, k, v, out: (batch, seq, heads, head_dim), the run's dtype: this rank's part of one sequence. Parts are
    equally long and follow one another in the order of the cp_group (None: all ranks). out is what the forward pass
    returned and dout its gradient. softmax_lse: (batch, heads, seq), float32: the forward pass's log-sum-exp of each
    query's scores. out and softmax_lse are to be taken as given, even where they do not fit q, k and v.
    softmax_scale: what scores are multiplied with; None means head_dim ** -0.5. causal: a position attends to itself
    and what comes before in the whole sequence. dp_group: ranks with the same part of other replicas, which have other
    data (None: no average).

    With s = scale * q_i . k_j, p = exp(s - lse_i) (0 where masked) and t = p * (dout_i . v_j - dout_i . out_i), over
    the whole sequence: dq_i = scale * sum_j t k_j, dk_j = scale * sum_i t q_i, dv_j = sum_i p dout_i, in float32.

    Returns (dq, dk, dv) of this rank's part, shapes and dtype of q, k, v: each rounded to the run's dtype, then summed
    over the dp_group and divided by its size in that dtype, so that they are the same on all its ranks.
    """
    rank, ranks = dist.get_rank(cp_group), dist.get_world_size(cp_group)
    wide = torch.promote_types(q.dtype, torch.float32)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    queries, upstream = q.to(wide).transpose(1, 2) * scale, dout.to(wide).transpose(1, 2)
    lse = softmax_lse.to(wide).unsqueeze(-1)
    delta = (upstream * out.to(wide).transpose(1, 2)).sum(-1, keepdim=True)

    dq = torch.zeros_like(queries)
    kv = arriving = torch.stack((k, v))
    leaving = travelling = torch.empty(0)
    transfers: list[dist.Work] = []
    following: list[dist.Work] = []
    for step in range(ranks):
        if step + 1 < ranks:  # the next block travels while this one is used
            arriving, transfers = pass_on(kv, cp_group)
        keys, values = kv.to(wide).transpose(2, 3)
        added = torch.zeros((2, *keys.shape), dtype=wide, device=q.device)
        if step <= rank or not causal:  # a block of rank - step; those of later ranks are masked as a whole
            p = queries @ keys.transpose(-1, -2)
            if causal and step == 0:
                later = torch.ones(p.shape[-2:], dtype=torch.bool, device=p.device).triu_(1)
                p.masked_fill_(later, float("-inf"))
            p.sub_(lse).exp_()
            torch.matmul(p.transpose(-1, -2), upstream, out=added[1])
            t = (upstream @ values.transpose(-1, -2)).sub_(delta).mul_(p)
            torch.matmul(t.transpose(-1, -2), queries, out=added[0])
            dq += t @ keys
        for transfer in following:
            transfer.wait()
        if step > 0:
            added += travelling
        # Gradients follow their block, one step behind, and arrive at its owner with the last.
        leaving, travelling = added, added  # kept until it has left
        if ranks > 1:
            travelling, following = pass_on(leaving, cp_group)
        for transfer in transfers:
            transfer.wait()
        kv, transfers = arriving, []
    for transfer in following:
        transfer.wait()

    gradients = torch.cat((dq[None] * scale, travelling)).to(q.dtype).transpose(2, 3).contiguous()
    replicas = 1 if dp_group is None else dist.get_world_size(dp_group)
    if replicas > 1:
        dist.all_reduce(gradients, group=dp_group)
        gradients /= replicas
    return gradients[0], gradients[1], gradients[2]


def inputs(case: Case, ctx: RankContext) -> Arguments:
    _, cp = halves(ctx.world_size)
    size, part = sizes(case, ctx.world_size, cp), ctx.rank % cp
    masked, scale = draw_causal(case, ctx, published=False), draw_scale(case, ctx, size.head_dim)
    k, v = draw_keys_and_values(case, ctx, size)
    q = draw_queries(case, ctx, size, size.seq * cp)
    dout = ctx.randn(*q.shape)
    # As published out and log-sum-exp know only the own block; elsewhere they are those of the whole sequence.
    seen = [part] if case.name == "pkb" else range(part + 1 if masked else cp)
    blocks = []
    for j in seen:
        peer = draw_keys_and_values(case, ctx.of_rank(ctx.rank - part + j), size)
        blocks.append(_attended(q, *peer, scale, masked and j == part, ctx))
    out, lse = blocks[0]
    for block, block_lse in blocks[1:]:
        both = torch.logaddexp(lse, block_lse)
        out, lse = out * (lse - both).exp() + block * (block_lse - both).exp(), both
    out, lse = out.transpose(1, 2).to(ctx.dtype).contiguous(), lse.squeeze(-1).contiguous()
    groups = neighbours(ctx.world_size, cp), across(ctx.world_size, cp)
    return dout, q, k, v, out, lse, scale, masked, *groups


def _attended(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None, masked: bool, ctx: RankContext
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over one block of keys, and its log-sum-exp."""
    q, k, v = (tensor.to(ctx.wide).transpose(1, 2) for tensor in (q, k, v))
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if masked:
        scores.masked_fill_(torch.ones(scores.shape[-2:], device=ctx.device).triu_(1).bool(), float("-inf"))
    lse = scores.logsumexp(-1, keepdim=True)
    return scores.sub_(lse).exp_() @ v, lse


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    dp, cp = halves(world_size)
    size = sizes(case, world_size, cp)
    n, whole = size.elements, pairs(size.seq * cp, maybe_causal(case, published=False))
    # Averaging: three gradients leave and, added by the switch, arrive. Without replicas: the first rank's keys and
    # values leave once, and both their gradients hang on the others.
    link = (3 if dp > 1 else 2 if cp > 1 else 0) * n * element_bytes
    return Work(
        flops=dp * 10 * size.batch * size.heads * size.head_dim * whole / world_size,
        hbm_bytes=8 * n * element_bytes + size.tokens * size.heads * max(4, element_bytes),
        link_out_bytes=link,
        link_in_bytes=link,
    )


PROBLEM = Problem(
    title="Backward pass of causal ring attention, averaged over replicas",
    family="context",
    source="ring-flash-attention, Megatron-LM",
    tags=("p2p", "all_reduce", "attention", "subgroups"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024},
        "default": {"m": 1024, "n": 1024},
        # Llama 3 8B split over 4 tensor-parallel ranks (8 heads of 128), 16k tokens in each of 2 replicas on 8 ranks.
        "large": {"batch": 1, "seq": 4096, "heads": 8, "head_dim": 128},
        "odd": {"batch": 3, "seq": 61, "heads": 5, "head_dim": 37},
        "tiny": {"batch": 2, "seq": 5, "heads": 3, "head_dim": 8},
    },
    tolerance="rounding",
    # Not the log-sum-exps: another row's may be off by so much that its exponentials outweigh everything.
    changing=(0, 1, 2, 3, 4),
    repair="As published the forward pass's output and log-sum-exp are those of the own block alone, so the result is "
    "no gradient of anything; in `default` they are those of causal attention over the whole sequence.",
)
