"""Backward of the cooperative feature exchange: each rank sends the gradients of the rows it got back to where they
came from, and adds up what arrives for the same row. (DGL GraphBolt.)
"""

import torch
import torch.distributed as dist

from problems.graphs import covering, exchange, mini_batch
from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(
    grad_output: torch.Tensor,
    seed_inverse_ids: torch.Tensor,
    seed_size: int,
    counts_sent: list[int],
    counts_received: list[int],
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """grad_output (sum(counts_sent), h), float32 (float64 if so given).
    counts_sent: W numbers, zeros allowed: the sizes of the consecutive chunks of grad_output. Chunk i of rank r goes to
        rank (r + i) mod W.
    counts_received: W numbers: the sizes of the consecutive chunks that arrive; chunk i comes from rank (r + i) mod W.
        Counts agree between each two ranks, and differ by rank.
    seed_inverse_ids (sum(counts_received),), int64 in [0, seed_size): the row to which each arriving row is added, for
        the arriving chunks in the order of i. Unsorted; some rows many times, some perhaps never.
    seed_size and both sums differ by rank; h does not.

    Returns (seed_size, h) in the dtype of grad_output: the sum of the arriving rows with that id; zero where there is
    none.
    """
    world_size, rank = dist.get_world_size(group), dist.get_rank(group)
    # By rank instead of by distance: the last `rank` chunks come first.
    sent = [counts_sent[(peer - rank) % world_size] for peer in range(world_size)]
    received = [counts_received[(peer - rank) % world_size] for peer in range(world_size)]
    rows = grad_output.roll(sum(sent[:rank]), 0) if rank else grad_output.contiguous()
    arrived = rows.new_empty(sum(received), rows.shape[1])
    dist.all_to_all_single(arrived, rows, received, sent, group=group)
    ids = seed_inverse_ids.roll(sum(received[:rank]))
    return rows.new_zeros(seed_size, rows.shape[1]).index_add_(0, ids, arrived)


def inputs(case: Case, ctx: RankContext) -> Arguments:
    _, features = mini_batch(case, ctx.world_size)
    counts_received, counts_sent = exchange(case, ctx)
    total, own = sum(counts_received), counts_received[0]
    seed_size = max(1, total // 2)
    if case.name == "pkb":
        ids = ctx.integers(0, seed_size, total)
    else:
        # Others' rows first, so that `work` can count on different ids among them.
        ids = covering(ctx, seed_size, total)
        others, rest = ids[: total - own], ids[total - own :]
        ids = torch.cat([rest[ctx.permutation(own)], others[ctx.permutation(total - own)]])
    gradients = ctx.randn(sum(counts_sent), features, dtype=ctx.wide)
    return gradients, ids, seed_size, counts_sent, counts_received, None


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    rows, features = mini_batch(case, world_size)
    row = features * max(element_bytes, 4)  # float32 whatever the run's dtype
    places = world_size * rows
    # Rows for one id can be added before they leave, or by the switch. On average over the ranks at least half of the
    # arriving rows have ids of their own in `default`, and more than 0.4 if drawn uniformly, as published.
    link = int(0.4 * (world_size - 1) * rows) * row
    return Work(
        flops=places // 2 * features,
        hbm_bytes=places * (8 + row) + (places - 1) // 2 * row,
        link_out_bytes=link,
        link_in_bytes=link,
    )


PROBLEM = Problem(
    title="Exchange gradient rows in chunks rotated by rank and add those of the same id",
    family="graph",
    source="DGL GraphBolt",
    tags=("all_to_all", "uneven", "gnn", "scatter_add", "backward"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024},
        "default": {"m": 1024, "n": 1024},
        # Mini-batches as large as those of problem 65, at a hidden size of 512.
        "large": {"rows_per_pair": 32768, "features": 512},
        "odd": {"rows_per_pair": 61, "features": 131},
        "tiny": {"rows_per_pair": 9, "features": 8},
    },
    tolerance="rounding",
    # Any row may be added to any other.
    changing=(0, 1),
    repair="As published all counts are equal, so that it cannot be seen which of the two lists of counts is used, nor "
    "whether they are used at all. `default` draws uneven counts, some of them zero, and ids of which a few are hot.",
)
