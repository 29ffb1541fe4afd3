"""Feature exchange of a cooperative mini-batch: each rank gathers the rows that the others asked for and sends them,
one chunk to each rank, where chunk i belongs to the rank at distance i. (DGL GraphBolt.)
"""

import torch
import torch.distributed as dist

from problems.graphs import covering, exchange, mini_batch
from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(
    local_features: torch.Tensor,
    seed_inverse_ids: torch.Tensor,
    counts_sent: list[int],
    counts_received: list[int],
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """local_features (rows here, h), any floating-point dtype: this rank's features.
    seed_inverse_ids (sum(counts_received),), int64: which row of local_features goes out at each place, in any order,
        some rows several times.
    counts_received: W numbers, zeros allowed: the sizes of the consecutive chunks of seed_inverse_ids. Chunk i of
        rank r goes to rank (r + i) mod W. (The names are those of the sampling before, which went the other way.)
    counts_sent: W numbers: the sizes of the consecutive chunks of the result. Chunk i of rank r comes from rank
        (r + i) mod W. Counts agree between each two ranks, and differ by rank.
    Rows of local_features and both sums differ by rank; h does not.

    Returns (sum(counts_sent), h) in the dtype of local_features.
    """
    world_size, rank = dist.get_world_size(group), dist.get_rank(group)
    # By rank instead of by distance: the last `rank` chunks come first.
    sent = [counts_received[(peer - rank) % world_size] for peer in range(world_size)]
    received = [counts_sent[(peer - rank) % world_size] for peer in range(world_size)]
    rows = local_features[seed_inverse_ids.roll(sum(sent[:rank]))]
    output = rows.new_empty(sum(received), rows.shape[1])
    dist.all_to_all_single(output, rows, received, sent, group=group)
    return output.roll(-sum(received[:rank]), 0) if rank else output


def inputs(case: Case, ctx: RankContext) -> Arguments:
    rows, features = mini_batch(case, ctx.world_size)
    counts_received, counts_sent = exchange(case, ctx)
    total = sum(counts_received)
    if case.name == "pkb":
        stored = 3 * rows * ctx.world_size // 4
        ids = ctx.integers(0, stored, total)
    else:
        stored = max(1, 3 * total // 4)
        ids = covering(ctx, stored, total)[ctx.permutation(total)]
    return ctx.randn(stored, features), ids, counts_sent, counts_received, None


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    rows, features = mini_batch(case, world_size)
    row = features * element_bytes
    # A row that a peer wants twice can cross once, and multicast brings it to several. In `default`, three quarters of
    # all places hold different rows, of which the own chunks (one place in W) may hold as many as fit: what is left is
    # half of the places that are others', at least. Uniform draws, as published, leave more.
    link = max(0, (world_size - 1) * rows // 2 - 1) * row
    return Work(
        # Ids in and rows out on average; which rows are read is left to chance.
        hbm_bytes=world_size * rows * (8 + row),
        link_out_bytes=link,
        link_in_bytes=link,
    )


PROBLEM = Problem(
    title="Gather feature rows and exchange them in chunks rotated by rank",
    family="graph",
    source="DGL GraphBolt",
    tags=("all_to_all", "uneven", "gnn", "gather"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024},
        "default": {"m": 1024, "n": 1024},
        # The 768 features of MAG240M; at 8 ranks 262,144 rows for each rank's mini-batch.
        "large": {"rows_per_pair": 32768, "features": 768},
        "odd": {"rows_per_pair": 61, "features": 131},
        "tiny": {"rows_per_pair": 9, "features": 8},
    },
    tolerance="exact",
    # Any row may be asked for.
    changing=(0, 1),
    repair="As published all counts are equal, so that it cannot be seen which of the two lists of counts is used, nor "
    "whether they are used at all. `default` draws uneven counts, some of them zero.",
)
