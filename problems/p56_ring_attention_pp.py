"""Two pipeline stages, each an attention layer whose sequence is sharded over context-parallel ranks; one micro-batch.

Within a stage keys and values go round a ring; a stage's output is sent to the rank that has the same tokens in the
next. Rank r is context-parallel rank r % cp of stage r // cp (Megatron's order).
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
    cp_group: dist.ProcessGroup | None = None,
    pp_group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """All tensors have the run's dtype.

    hidden_states: (batch, seq, channels): in the first stage a part of one sequence; parts are equally long and follow
    one another in the order of the cp_group. In later stages only its shape counts: the stage's input is the output of
    the previous rank of the pp_group.
    w_qkv: (3 * channels, channels), rows of queries, then keys, then values, each head after head; w_o: (channels,
    channels). Both belong to the stage and are the same on all ranks of a cp_group.
    softmax_scale: what scores are multiplied with; None means head_dim ** -0.5. causal: a position attends to itself
    and what comes before in the whole sequence. pp_group: one rank of each stage, in their order (None: one stage).

    Returns (batch, seq, channels), the run's dtype: on every rank the output of its own stage for its tokens.
    Projections are in the run's dtype, attention is computed in float32 and rounded once.
    """
    stages = 1 if pp_group is None else dist.get_world_size(pp_group)
    stage = 0 if pp_group is None else dist.get_rank(pp_group)
    if stage > 0:
        hidden_states = torch.empty_like(hidden_states)
        dist.recv(hidden_states, group=pp_group, group_src=stage - 1)
    q, k, v = (hidden_states @ w_qkv.T).unflatten(-1, (3, num_heads, -1)).unbind(2)
    out = ring_attention(q, k, v, softmax_scale, causal, cp_group).flatten(2) @ w_o.T
    if stage + 1 < stages:
        dist.send(out, group=pp_group, group_dst=stage + 1)
    return out


def inputs(case: Case, ctx: RankContext) -> Arguments:
    _, cp = halves(ctx.world_size)
    size = sizes(case, ctx.world_size, cp)
    channels, stage, part = size.channels, ctx.rank // cp, ctx.rank % cp
    # As published a later stage is given the same hidden states, which it has no use for; elsewhere others.
    source = ctx.stream(f"part {part}") if case.name == "pkb" else ctx
    weights = projections(case, ctx.stream(f"stage {stage}"), channels, channels, size.seq * cp)
    return source.randn(size.batch, size.seq, channels), *weights, *layer_options(case, ctx, size, cp)


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    pp, cp = halves(world_size)
    size = sizes(case, world_size, cp)
    channels, n = size.channels, size.elements
    # The first rank's hidden states matter to others and leave at least once; the last rank's output hangs on them.
    link = n * element_bytes if world_size > 1 else 0
    return Work(
        flops=pp * layer_flops(case, size, cp) / world_size,
        hbm_bytes=(4 * channels**2 + 2 * n) * element_bytes,
        link_out_bytes=link,
        link_in_bytes=link,
    )


PROBLEM = Problem(
    title="Two pipeline stages of causal ring attention",
    family="pipeline",
    source="Megatron-LM, ring-flash-attention",
    tags=("p2p", "attention", "gemm", "subgroups"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024},
        "default": {"m": 1024, "n": 1024},
        # Width of Qwen3 1.7B (2048, 16 heads of 128), 16k tokens on 8 ranks.
        "large": {"batch": 1, "seq": 4096, "heads": 16, "head_dim": 128},
        "odd": {"batch": 3, "seq": 61, "heads": 5, "head_dim": 37},
        "tiny": {"batch": 2, "seq": 5, "heads": 3, "head_dim": 8},
    },
    tolerance="rounding",
    repair="As published weights are so small that scores hardly differ, attention is almost the plain mean of the "
    "values and the second stage's output all but vanishes; `default` scales them so that softmax is peaked and both "
    "stages' outputs are of order one.",
)
