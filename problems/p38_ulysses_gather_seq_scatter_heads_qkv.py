"""Re-shard the result of a fused query-key-value projection from sequence to heads, in one exchange.

Ulysses sequence parallelism before attention, where one matrix product makes queries, keys and values.
"""

import torch
import torch.distributed as dist

from problems.attention import padding, sizes, uneven_heads, varied
from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(
    qkv_tensor: torch.Tensor,
    seq_dim: int,
    group: dist.ProcessGroup | None = None,
    unpadded_dim_size: int | None = None,
    restore_shape: bool = True,
) -> torch.Tensor:
    """qkv_tensor: (batch, seq, 3 * D), the run's dtype: this rank's part of the sequence, as long on every rank of the
    group (None: all ranks, W of them). The last axis holds D query, then D key, then D value channels; D is a multiple
    of W. seq_dim (here always 1) is the position of the sequence axis.

    Returns (batch, W * seq, 3 * D / W): the whole sequence, ranks' parts in rank order, of this rank's D / W query, key
    and value channels (rank r has channels r * D / W and following of each). Without restore_shape the last axis stays
    two: (batch, W * seq, 3, D / W). If unpadded_dim_size is neither None, 0 nor a multiple of W, the sequence ends
    after so many entries; what follows was padding.
    """
    ranks = dist.get_world_size(group)
    outgoing = qkv_tensor.unflatten(-1, (3, ranks, -1)).movedim(-2, 0).contiguous()
    incoming = torch.empty_like(outgoing)
    dist.all_to_all_single(incoming, outgoing, group=group)
    whole = incoming.movedim(0, seq_dim).flatten(seq_dim, seq_dim + 1)
    if unpadded_dim_size and unpadded_dim_size % ranks:
        whole = whole.narrow(seq_dim, 0, unpadded_dim_size)
    return (whole.flatten(-2) if restore_shape else whole).contiguous()


def inputs(case: Case, ctx: RankContext) -> Arguments:
    size = sizes(case, ctx.world_size)
    pad = padding(case, ctx)
    qkv = ctx.randn(size.batch, size.seq, 3 * size.heads * size.head_dim)
    restore_shape = not varied(case) or bool(ctx.stream("shape").integer(0, 2))
    return qkv, 1, None, size.seq * ctx.world_size - pad if pad else None, restore_shape


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    size = sizes(case, world_size)
    row = (
        3 * size.batch * size.heads * size.head_dim // world_size * element_bytes
    )  # one token's part that a rank keeps
    trimmed = world_size - 1 if varied(case) else 0
    return Work(
        hbm_bytes=(2 * world_size * size.seq - trimmed) * row,
        # Every piece has one reader, so no help from a switch. Rank 0 is never trimmed.
        link_out_bytes=(world_size - 1) * size.seq * row,
        link_in_bytes=((world_size - 1) * size.seq - trimmed) * row,
    )


PROBLEM = Problem(
    title="Re-shard fused queries, keys and values from sequence to heads",
    family="context",
    source="VeOmni",
    tags=("all_to_all", "sequence_parallel"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024},
        # Llama 2 7B (32 heads of 128 for queries, keys and values), 64k tokens on 8 ranks.
        "large": {"batch": 1, "seq": 8192, "heads": 32, "head_dim": 128},
        "odd": {"batch": 3, "seq": 101, "heads_per_rank": 3, "head_dim": 37},
        "tiny": {"batch": 2, "seq": 5, "heads_per_rank": 3, "head_dim": 6},
    },
    tolerance="exact",
    illegal=uneven_heads,
)
