"""Causal depthwise convolution over a sequence that is sharded in zigzag, with halos from the neighbouring ranks.

The short convolutions of Evo 2's Hyena operators under context parallelism.
"""

import torch
import torch.distributed as dist
from torch.nn import functional

from problems.spatial import neighbours
from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(x: torch.Tensor, weight: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """The global sequence is cut into 2W chunks of L positions; rank r of W holds chunk r and chunk 2W-1-r.

    x: (B, C, 2L): chunk r in the first half of the last axis, chunk 2W-1-r in the second.
    weight: (C, 1, K) in x's dtype, with K - 1 <= L; each rank applies its own to the positions that it holds.
    Result: (B, C, 2L) in x's dtype and in the same layout, contiguous:
    y[b, c, t] = sum over j of weight[c, 0, j] * x[b, c, t - (K - 1) + j], where t is a global position and x is zero
    before the first.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    channels, _, taps = weight.shape
    early, late = x.chunk(2, dim=-1)
    length, reach = early.shape[-1], taps - 1
    early_end, late_end = (half[..., length - reach :].contiguous() for half in (early, late))
    # Before the early chunk comes the previous rank's early chunk, before the late one the next rank's late one.
    before_early = torch.zeros_like(early_end)
    before_late = torch.empty_like(early_end) if rank < world_size - 1 else early_end
    transfers = []
    if rank > 0:
        transfers.append(dist.P2POp(dist.irecv, before_early, group=group, group_peer=rank - 1))
        transfers.append(dist.P2POp(dist.isend, late_end, group=group, group_peer=rank - 1))
    if rank < world_size - 1:
        transfers.append(dist.P2POp(dist.isend, early_end, group=group, group_peer=rank + 1))
        transfers.append(dist.P2POp(dist.irecv, before_late, group=group, group_peer=rank + 1))
    for transfer in dist.batch_isend_irecv(transfers) if transfers else []:
        transfer.wait()
    chunks = torch.cat([before_early, early, before_late, late], dim=-1)
    chunks = chunks.unflatten(-1, (2, reach + length)).transpose(1, 2).flatten(0, 1)
    y = functional.conv1d(chunks, weight, groups=channels)
    return y.unflatten(0, (-1, 2)).transpose(1, 2).flatten(2)


def inputs(case: Case, ctx: RankContext) -> Arguments:
    b, c, length, taps = case["b"], case["c"], case["l"], case["k"]
    # Channels differ in size by decades.
    scale = 10 ** ctx.shared().uniform(c, 1, low=-3, high=2, dtype=torch.float32)
    x = (ctx.randn(b, c, 2 * length, dtype=torch.float32) * scale).to(ctx.dtype)
    return x, ctx.randn(c, 1, taps) * taps**-0.5


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    b, c, length, taps = case["b"], case["c"], case["l"], case["k"]
    positions = b * c * 2 * length
    # An inner rank has halos from, and for, both neighbours.
    link = neighbours(world_size) * b * c * (taps - 1) * element_bytes
    return Work(
        # Fast algorithms need more than one multiplication per output.
        flops=2 * positions,
        hbm_bytes=(2 * positions + c * taps) * element_bytes,
        link_out_bytes=link,
        link_in_bytes=link,
    )


PROBLEM = Problem(
    title="Causal depthwise convolution with halo exchange, zigzag layout",
    family="context",
    source="Savanna",
    tags=("convolution", "p2p"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"b": 1, "c": 1024, "l": 1024, "k": 7},
        # Evo 2 7B (4096 channels), a context of 256k positions on 8 ranks.
        "large": {"b": 1, "c": 4096, "l": 16384, "k": 7},
        # More taps, as in Evo 2's medium filters, and chunks hardly longer.
        "odd": {"b": 3, "c": 37, "l": 29, "k": 23},
        "tiny": {"b": 2, "c": 5, "l": 7, "k": 4},
    },
    tolerance="rounding",
)
