"""An attention layer under Ulysses sequence parallelism: project, swap sequence for heads, attend, swap back, project.

Every rank holds a part of the sequence and computes attention for some of the heads over the whole sequence.
"""

import torch
import torch.distributed as dist

from problems.attention import draw_causal, maybe_causal, pairs, sizes, spread, uneven_heads
from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(
    hidden_states: torch.Tensor,
    w_qkv: torch.Tensor,
    w_o: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    num_heads: int = 8,
    causal: bool = False,
    over_sequence: bool = False,
) -> torch.Tensor:
    """hidden_states: (batch, seq, channels), the run's dtype: this rank's part of one sequence; ranks' parts are
    equally long and in rank order. w_qkv: (3 * channels, channels), rows of queries, then keys, then values, each head
    after head; w_o: (channels, channels). num_heads divides evenly by the ranks of the group (None: all ranks).

    over_sequence: attention as usual, each position of the whole sequence over all positions (with causal: up to its
    own); weights are then the same on all ranks. Without it, as the benchmark published it, a position's heads attend
    to one another: those heads that a rank has after the first exchange (with causal: up to the own, if there is more
    than one position), and weights differ by rank; each rank projects with its own.

    Returns (batch, seq, channels), the run's dtype: the layer's output for this rank's part.
    """
    ranks = dist.get_world_size(group)
    batch, seq, channels = hidden_states.shape
    qkv = (hidden_states @ w_qkv.T).view(batch, seq, 3, ranks, num_heads // ranks, channels // num_heads)
    outgoing = qkv.permute(3, 2, 0, 1, 4, 5).contiguous()
    incoming = torch.empty_like(outgoing)
    dist.all_to_all_single(incoming, outgoing, group=group)
    # (3, batch, whole sequence, own heads, channels of a head)
    q, k, v = incoming.permute(1, 2, 0, 3, 4, 5).flatten(2, 3)

    masked = causal and ranks * seq > 1
    if over_sequence:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=masked)
    if over_sequence:
        attended = attended.transpose(1, 2)

    outgoing = attended.unflatten(1, (ranks, seq)).transpose(0, 1).contiguous()
    incoming = torch.empty_like(outgoing)
    dist.all_to_all_single(incoming, outgoing, group=group)
    return incoming.permute(1, 2, 0, 3, 4).flatten(2) @ w_o.T


def inputs(case: Case, ctx: RankContext) -> Arguments:
    size = sizes(case, ctx.world_size, ctx.world_size)
    channels = size.heads * size.head_dim
    hidden = ctx.randn(size.batch, size.seq, channels)
    if case.name == "pkb":
        return hidden, ctx.randn(3 * channels, channels), ctx.randn(channels, channels), None, size.heads, False
    common, scale = ctx.shared(), channels**-0.5
    w_qkv = common.randn(3 * channels, channels, dtype=ctx.wide) * scale
    w_qkv[:channels] *= spread(size.seq * ctx.world_size)
    w_o = common.randn(channels, channels, dtype=ctx.wide) * scale * 1.5
    return hidden, w_qkv.to(ctx.dtype), w_o.to(ctx.dtype), None, size.heads, draw_causal(case, ctx), True


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    size = sizes(case, world_size, world_size)
    channels, published = size.heads * size.head_dim, case.name == "pkb"
    if published:  # a position needs nothing but itself, and can be done where it is
        scores = size.tokens * size.heads * size.heads / world_size
    else:
        whole = pairs(size.seq * world_size, maybe_causal(case))
        scores = size.batch * size.heads * whole / world_size
    # Rank 0's hidden states matter to all others and leave at least once (multicast); the last rank's output hangs on
    # the others in each of its elements.
    link = size.elements * element_bytes if world_size > 1 and not published else 0
    return Work(
        flops=8 * size.tokens * channels**2 + 4 * scores * size.head_dim,
        hbm_bytes=(2 * size.elements + 4 * channels**2) * element_bytes,
        link_out_bytes=link,
        link_in_bytes=link,
    )


PROBLEM = Problem(
    title="Attention layer with Ulysses sequence parallelism",
    family="context",
    source="VeOmni",
    tags=("all_to_all", "attention", "gemm", "sequence_parallel"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024},
        "default": {"m": 1024, "n": 1024},
        # Width of Qwen3 1.7B (2048, 16 heads of 128), 16k tokens on 8 ranks.
        "large": {"batch": 1, "seq": 2048, "heads": 16, "head_dim": 128},
        "odd": {"batch": 3, "seq": 61, "heads_per_rank": 3, "head_dim": 37},
        "tiny": {"batch": 2, "seq": 3, "heads_per_rank": 2, "head_dim": 8},
    },
    tolerance="rounding",
    illegal=uneven_heads,
    repair="As published attention runs over a position's heads instead of over positions, and nothing need be sent; "
    "in `default` over_sequence (added at the end of the signature) makes it run over the sequence, causally, and "
    "weights are the same on all ranks and scaled so that scores do not drown in rounding.",
)
