"""Ring attention: queries, keys and values of one sequence are sharded over ranks; keys and values go round the ring.

Long-context training computes exact attention this way without ever holding the whole sequence.
"""

import torch
import torch.distributed as dist

from problems.attention import attention_flops, draw_causal, draw_keys_and_values, draw_queries, draw_scale, sizes
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
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """q, k, v: (batch, seq, heads, head_dim), the run's dtype: this rank's part of one sequence. Ranks' parts are
    equally long and follow one another in rank order of the group (None: all ranks). softmax_scale: what scores are
    multiplied with; None means head_dim ** -0.5. causal: a position attends to itself and what comes before in the
    whole sequence.

    Returns softmax(scale * q k^T) v over the whole sequence's keys for this rank's queries, shape and dtype of q.
    Computed in float32 and rounded once.
    """
    return ring_attention(q, k, v, softmax_scale, causal, group)


def inputs(case: Case, ctx: RankContext) -> Arguments:
    size = sizes(case, ctx.world_size, ctx.world_size)
    k, v = draw_keys_and_values(case, ctx, size)
    q = draw_queries(case, ctx, size, size.seq * ctx.world_size)
    return q, k, v, draw_scale(case, ctx, size.head_dim), draw_causal(case, ctx), None


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    size = sizes(case, world_size, world_size)
    n = size.elements
    return Work(
        flops=attention_flops(case, size, size.seq * world_size) / world_size,
        hbm_bytes=4 * n * element_bytes,
        # Rank 0's keys and values matter to all others: they leave once (multicast), or, to one other rank, its answer.
        link_out_bytes=min(2, world_size - 1) * n * element_bytes,
        # The last rank's output hangs on the others in each of its elements; less would do if its queries travelled.
        link_in_bytes=n * element_bytes if world_size > 1 else 0,
    )


PROBLEM = Problem(
    title="Causal ring attention over a sharded sequence",
    family="context",
    source="ring-flash-attention",
    tags=("p2p", "attention"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024},
        # Llama 3 8B split over 4 tensor-parallel ranks (8 heads of 128), 32k tokens on 8 ranks.
        "large": {"batch": 1, "seq": 4096, "heads": 8, "head_dim": 128},
        "odd": {"batch": 3, "seq": 61, "heads": 5, "head_dim": 37},
        "tiny": {"batch": 2, "seq": 5, "heads": 3, "head_dim": 8},
    },
    tolerance="rounding",
)
