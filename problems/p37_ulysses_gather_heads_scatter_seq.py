"""Re-shard attention output: from some heads of all tokens to all heads of some tokens, padding the sequence if needed.

Ulysses sequence parallelism does this after attention.
"""

import torch
import torch.distributed as dist

from problems.attention import sizes
from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(x: torch.Tensor, seq_dim: int, head_dim: int, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """x: (batch, seq, heads, channels), the run's dtype: the whole sequence of this rank's heads, the same shape on
    every rank of the group (None: all ranks, W of them). seq_dim (here always 1) and head_dim (here always 2) are the
    positions of the sequence and head axes.

    Returns (batch, part, heads * W, channels) with part = ceil(seq / W): rank r gets sequence entries r * part and
    following, heads in rank order. Where seq is no multiple of W, zeros fill it up to W * part entries; they stay.
    """
    ranks = dist.get_world_size(group)
    if missing := -x.shape[seq_dim] % ranks:
        x = torch.nn.functional.pad(x, (0, 0) * (x.dim() - 1 - seq_dim) + (0, missing))
    outgoing = x.unflatten(seq_dim, (ranks, -1)).movedim(seq_dim, 0).contiguous()
    incoming = torch.empty_like(outgoing)
    dist.all_to_all_single(incoming, outgoing, group=group)
    return incoming.movedim(0, head_dim).flatten(head_dim, head_dim + 1).contiguous()


def inputs(case: Case, ctx: RankContext) -> Arguments:
    size = sizes(case, 1)
    return ctx.randn(size.batch, size.seq, size.heads, size.head_dim), 1, 2


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    size = sizes(case, 1)
    row = size.batch * size.heads * size.head_dim * element_bytes  # one token's heads of one rank
    part = -(-size.seq // world_size)
    last = max(0, size.seq - (world_size - 1) * part)
    return Work(
        hbm_bytes=(size.seq + part * world_size) * row,
        # Padding need not be sent: the last rank keeps least, and the first receives most.
        link_out_bytes=(size.seq - last) * row,
        link_in_bytes=(world_size - 1) * part * row,
    )


PROBLEM = Problem(
    title="Re-shard attention output from heads to sequence",
    family="context",
    source="VeOmni",
    tags=("all_to_all", "sequence_parallel", "uneven"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024},
        # Attention output of Llama 3 70B (64 heads of 128, 8 on each of 8 ranks); nearly 128k tokens, which 4 and 8
        # do not divide.
        "large": {"batch": 1, "seq": 131070, "heads": 8, "head_dim": 128},
        "odd": {"batch": 3, "seq": 1009, "heads": 3, "head_dim": 37},
        "tiny": {"batch": 2, "seq": 13, "heads": 3, "head_dim": 6},
    },
    tolerance="exact",
)
