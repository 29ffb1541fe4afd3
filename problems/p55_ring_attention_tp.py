"""An attention layer with heads sharded over tensor-parallel ranks and the sequence over context-parallel ranks.

Keys and values go round the ring of the ranks that have the same heads; the output projections of the ranks that have
the same tokens are added up. Rank r is tensor-parallel rank r % tp and context-parallel rank r // tp (Megatron's
order).
"""

import torch
import torch.distributed as dist

from problems.attention import halves, layer_flops, layer_options, projections, sizes
from problems.spec import Arguments, Case, Problem, RankContext, Work


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, masked: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of one block, and the logarithm of what its softmax divides by; (batch, heads, seq, head_dim)."""
    scores = q @ k.transpose(-1, -2)
    if masked:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu_(1)
        scores.masked_fill_(later, float("-inf"))
    peak = scores.amax(-1, keepdim=True)
    weights = scores.sub_(peak).exp_()
    total = weights.sum(-1, keepdim=True)
    return (weights @ v) / total, peak + total.log()


def ring_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    softmax_scale: float | None,
    causal: bool,
    group: dist.ProcessGroup | None,
) -> torch.Tensor:
    """Keys and values go round the group; each rank attends to the block that it has. (batch, seq, heads, head_dim)"""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    wide = torch.promote_types(q.dtype, torch.float32)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    queries = q.to(wide).transpose(1, 2) * scale
    kv, arriving = torch.stack((k, v)), torch.empty(0)
    transfers: list[dist.Work] = []
    out, lse = torch.empty(0), torch.empty(0)
    for step in range(ranks):
        if step + 1 < ranks:  # the next block travels while this one is used
            arriving = torch.empty_like(kv)
            send = dist.P2POp(dist.isend, kv, group=group, group_peer=(rank + 1) % ranks)
            receive = dist.P2POp(dist.irecv, arriving, group=group, group_peer=(rank - 1) % ranks)
            transfers = dist.batch_isend_irecv([send, receive])
        if step <= rank or not causal:  # a block of rank - step; those of later ranks are masked as a whole
            keys, values = kv.to(wide).transpose(2, 3)
            block, block_lse = attend(queries, keys, values, causal and step == 0)
            if step == 0:
                out, lse = block, block_lse
            else:
                out += torch.sigmoid(block_lse - lse) * (block - out)
                lse = torch.logaddexp(lse, block_lse)
        if step + 1 < ranks:
            for transfer in transfers:
                transfer.wait()
            kv = arriving
    return out.to(q.dtype).transpose(1, 2).contiguous()


def reference(
    hidden_states: torch.Tensor,
    w_qkv: torch.Tensor,
    w_o: torch.Tensor,
    num_heads: int,
    softmax_scale: float | None = None,
    causal: bool = False,
    tp_group: dist.ProcessGroup | None = None,
    cp_group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """All tensors have the run's dtype.

    hidden_states: (batch, seq, channels): a part of one sequence, the same on all ranks of a tp_group. Parts are
    equally long and follow one another in the order of the cp_group.
    w_qkv: (3 * c, channels) with c = channels / tp: rows of queries, then keys, then values of the num_heads / tp heads
    of this tensor-parallel rank, head after head; w_o: (channels, c), that rank's columns. Both are the same on all
    ranks of a cp_group. num_heads is the number over all tensor-parallel ranks.
    softmax_scale: what scores are multiplied with; None means head_dim ** -0.5. causal: a position attends to itself
    and what comes before in the whole sequence.

    Returns (batch, seq, channels), the run's dtype: the layer's output for these tokens, the same on all ranks of a
    tp_group. Projections and the sum over ranks are in the run's dtype, attention is computed in float32 and rounded
    once.
    """
    tp = dist.get_world_size(tp_group)
    qkv = (hidden_states @ w_qkv.T).unflatten(-1, (3, num_heads // tp, -1))
    q, k, v = qkv.unbind(2)
    out = ring_attention(q, k, v, softmax_scale, causal, cp_group).flatten(2) @ w_o.T
    if tp > 1:
        dist.all_reduce(out, group=tp_group)
    return out


def inputs(case: Case, ctx: RankContext) -> Arguments:
    tp, cp = halves(ctx.world_size)
    size = sizes(case, ctx.world_size, cp)
    channels = size.channels
    hidden = ctx.stream(f"part {ctx.rank // tp}").randn(size.batch, size.seq, channels)
    weights = projections(case, ctx.stream(f"heads {ctx.rank % tp}"), channels, channels // tp, size.seq * cp)
    return hidden, *weights, *layer_options(case, ctx, size, tp)


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    tp, cp = halves(world_size)
    size = sizes(case, world_size, cp)
    channels, n = size.channels, size.elements
    weights = 4 * channels**2 // tp
    # To its tensor-parallel peer a rank sends its share of the output, or of the attention and w_o, or its weights. A
    # context-parallel rank's tokens matter to the others': they leave at least once, from either of two peers.
    link = min(n, n // tp + channels**2 // tp, weights) if tp > 1 else 0
    if cp > 1:
        link = max(link, n // tp)
    return Work(
        flops=layer_flops(case, size, cp) / world_size,
        hbm_bytes=(weights + 2 * n) * element_bytes,
        link_out_bytes=link * element_bytes,
        link_in_bytes=link * element_bytes,
    )


PROBLEM = Problem(
    title="Attention layer with tensor-parallel heads and causal ring attention",
    family="context",
    source="Megatron-LM, ring-flash-attention",
    tags=("p2p", "all_reduce", "attention", "gemm", "subgroups"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024},
        "default": {"m": 1024, "n": 1024},
        # Width of Llama 3 8B (4096, 32 heads of 128), 16k tokens on 8 ranks.
        "large": {"batch": 1, "seq": 4096, "heads": 32, "head_dim": 128},
        "odd": {"batch": 3, "seq": 61, "heads": 6, "head_dim": 37},
        "tiny": {"batch": 2, "seq": 5, "heads": 4, "head_dim": 8},
    },
    tolerance="rounding",
    repair="As published weights are so small that scores hardly differ and attention is almost the plain mean of the "
    "values; `default` scales them so that softmax is peaked and outputs are of order one.",
)
