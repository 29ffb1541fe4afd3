"""Re-shard attention input: from all heads of some tokens to some heads of all tokens.

Ulysses sequence parallelism does this to queries, keys and values before attention.
"""

import torch
import torch.distributed as dist

from problems.attention import padding, sizes, uneven_heads, varied
from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(
    x: torch.Tensor,
    seq_dim: int,
    head_dim: int,
    group: dist.ProcessGroup | None = None,
    unpadded_dim_size: int = 0,
) -> torch.Tensor:
    """x: (batch, seq, heads, channels), the run's dtype: this rank's part of the sequence, as long on every rank of the
    group (None: all ranks, W of them). seq_dim (here always 1) and head_dim (here always 2) are the positions of the
    sequence and head axes; heads divide evenly by W.

    Returns (batch, W * seq, heads / W, channels): the whole sequence, ranks' parts in rank order, of this rank's heads
    (rank r has heads r * heads / W and following). If unpadded_dim_size is neither 0 nor a multiple of W, the sequence
    ends after so many entries; what follows was padding.
    """
    ranks = dist.get_world_size(group)
    outgoing = x.unflatten(head_dim, (ranks, -1)).movedim(head_dim, 0).contiguous()
    incoming = torch.empty_like(outgoing)
    dist.all_to_all_single(incoming, outgoing, group=group)
    whole = incoming.movedim(0, seq_dim).flatten(seq_dim, seq_dim + 1)
    if unpadded_dim_size % ranks:
        whole = whole.narrow(seq_dim, 0, unpadded_dim_size)
    return whole.contiguous()


def inputs(case: Case, ctx: RankContext) -> Arguments:
    size = sizes(case, ctx.world_size)
    pad = padding(case, ctx)
    x = ctx.randn(size.batch, size.seq, size.heads, size.head_dim)
    return x, 1, 2, None, size.seq * ctx.world_size - pad if pad else 0


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    size = sizes(case, world_size)
    row = size.batch * size.heads * size.head_dim // world_size * element_bytes  # one token's part that a rank keeps
    trimmed = world_size - 1 if varied(case) else 0
    return Work(
        hbm_bytes=(2 * world_size * size.seq - trimmed) * row,
        # Every piece has one reader, so no help from a switch. Rank 0 is never trimmed.
        link_out_bytes=(world_size - 1) * size.seq * row,
        link_in_bytes=((world_size - 1) * size.seq - trimmed) * row,
    )


PROBLEM = Problem(
    title="Re-shard attention input from sequence to heads",
    family="context",
    source="VeOmni",
    tags=("all_to_all", "sequence_parallel"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024},
        # Queries of Llama 3 8B (32 heads of 128), 128k tokens on 8 ranks.
        "large": {"batch": 1, "seq": 16384, "heads": 32, "head_dim": 128},
        "odd": {"batch": 3, "seq": 101, "heads_per_rank": 3, "head_dim": 37},
        "tiny": {"batch": 2, "seq": 5, "heads_per_rank": 3, "head_dim": 6},
    },
    tolerance="exact",
    illegal=uneven_heads,
)
