"""Sample sort over all ranks, followed by a rebalancing to equal shards. (Sorting in NVIDIA cuPyNumeric.)"""

import torch
import torch.distributed as dist

from problems.graphs import clamp, ragged
from problems.spec import Arguments, Case, Problem, RankContext, Work

# torch 2.13 renamed the call and warns on every use of the old name; earlier versions know only that.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
SAMPLES = 64  # of each rank


def exchanged(
    tensor: torch.Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup | None
) -> torch.Tensor:
    output = tensor.new_empty(sum(received))
    dist.all_to_all_single(output, tensor, received, sent, group=group)
    return output


def overlap(begin: int, end: int, other_begin: int, other_end: int) -> int:
    return max(0, min(end, other_end) - max(begin, other_begin))


def reference(local_shard: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """local_shard (n,), any floating-point dtype: this rank's values, unsorted, with repeats, no NaN. n differs by
        rank, is not known to the others and may be zero.

    Returns this rank's part of all ranks' values in ascending order, same dtype: of `total` values each rank gets
    total // W, and the first total % W ranks get one more.
    """
    world_size, rank, device = dist.get_world_size(group), dist.get_rank(group), local_shard.device
    ordered = local_shard.sort().values
    sizes = torch.zeros(world_size, dtype=torch.int64, device=device)
    all_gather(sizes, sizes.new_full((1,), len(ordered)), group=group)
    total = int(sizes.sum())

    # Samples at regular positions, each of which stands for an equal part of its rank's values.
    steps = torch.arange(SAMPLES, device=device)
    positions = (2 * steps + 1) * sizes[:, None] // (2 * SAMPLES)
    own = ordered[positions[rank]] if len(ordered) else ordered.new_zeros(SAMPLES)
    samples = own.new_empty(world_size * SAMPLES)
    all_gather(samples, own, group=group)
    # By value, rank and position, so that equal values are divided as well.
    samples, order = samples.sort(stable=True)
    weight = sizes.repeat_interleave(SAMPLES)[order].cumsum(0)
    targets = torch.arange(1, world_size, device=device) * total * SAMPLES // world_size
    chosen = torch.searchsorted(weight, targets + 1).clamp_max(world_size * SAMPLES - 1)
    splitter, source, position = samples[chosen], order[chosen] // SAMPLES, positions.flatten()[order[chosen]]

    # Of the values equal to a splitter, those of lower ranks come before it, those of higher ranks after it.
    below, up_to = (torch.searchsorted(ordered, splitter, right=right) for right in (False, True))
    within = torch.minimum(torch.maximum(position, below), up_to)
    cuts = torch.where(source > rank, up_to, torch.where(source < rank, below, within))
    edges = torch.cat([cuts.new_zeros(1), cuts, cuts.new_full((1,), len(ordered))])
    sent = edges.diff()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    bucket = exchanged(ordered, sent.tolist(), received.tolist(), group).sort().values

    # The buckets are in order; only their borders must move.
    all_gather(sizes, sizes.new_full((1,), len(bucket)), group=group)
    ends = sizes.cumsum(0).tolist()
    shares = [total // world_size + (peer < total % world_size) for peer in range(world_size)]
    limits = [sum(shares[: peer + 1]) for peer in range(world_size)]
    have = [(end - size, end) for end, size in zip(ends, sizes.tolist(), strict=True)]
    want = [(limit - share, limit) for limit, share in zip(limits, shares, strict=True)]
    return exchanged(
        bucket,
        [overlap(*have[rank], *peer) for peer in want],
        [overlap(*peer, *want[rank]) for peer in have],
        group,
    )


def per_rank(case: Case, world_size: int) -> int:
    return clamp(case["m"] // world_size, 4 * world_size, 4096) if "m" in case.sizes else case["per_rank"]


def inputs(case: Case, ctx: RankContext) -> Arguments:
    world_size, rank, common = ctx.world_size, ctx.rank, ctx.shared()
    count = per_rank(case, world_size)
    if case.name == "pkb":
        # As published: in one trial of four the odd ranks have nothing.
        if common.integer(0, 4) == 3 and rank % 2:
            count = 0
        return (ctx.integers(-50, 50, count) - rank * max(1, count)).to(ctx.dtype), None
    # A fixed total in uneven shards; from three ranks on, one is empty. Half of the values come from one distribution,
    # the others from one of four shapes: narrow, one-sided, of few values, wide.
    count = ragged(common, world_size, world_size * count, empty=int(world_size >= 3))[rank]
    normal = ctx.randn(count, dtype=torch.float32)
    shape = (common.integer(0, 4) + rank) % 4
    if shape == 0:
        own = 0.1 * ctx.randn(count, dtype=torch.float32) - 2
    elif shape == 1:
        own = -torch.log(ctx.uniform(count, low=1e-6, dtype=torch.float32))
    elif shape == 2:
        own = torch.round(2 * ctx.randn(count, dtype=torch.float32)) / 2
    else:
        own = 3 * ctx.randn(count, dtype=torch.float32)
    values = torch.where(ctx.uniform(count, dtype=torch.float32) < 0.5, normal, own).to(ctx.dtype)
    return values + 0.0, None  # no negative zero, whose place among zeros would be open


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    count = per_rank(case, world_size)
    # An eighth of the result comes from elsewhere, whatever the shards: a quarter to three quarters of the shared half.
    # Sorted values can be sent as differences, of a byte or so; values of 16 bits as counts of the few there are.
    link = (count // 8 if element_bytes > 2 else min(count // 8, 256)) if world_size > 1 else 0
    # Every value is read once and written once, on average.
    return Work(hbm_bytes=2 * count * element_bytes, link_out_bytes=link, link_in_bytes=link)


PROBLEM = Problem(
    title="Sort all ranks' values and divide them equally",
    family="other",
    source="cuPyNumeric",
    tags=("all_gather", "all_to_all", "uneven", "sort"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024},
        "default": {"per_rank": 262144},
        # 128 MB of float32 on each rank.
        "large": {"per_rank": 33554432},
        "odd": {"per_rank": 5003},
        "tiny": {"per_rank": 67},
    },
    tolerance="exact",
    changing=(0,),
    repair="As published the ranks' values lie in disjoint ranges in descending order, so that sorting locally and "
    "reversing the ranks is right, and 256 values per rank are too few to need an algorithm. `default` draws uneven "
    "shards of 262,144 values on average from overlapping distributions with repeats; from three ranks on, one is "
    "empty.",
)
