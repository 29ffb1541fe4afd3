"""Fetch of embedding rows by node id from a table that is divided among the ranks, then a projection.

The input layer of distributed GNN training on a graph like ogbn-papers100M (WholeGraph, DGL).
"""

import torch
import torch.distributed as dist

from problems.graphs import clamp, hot_rows
from problems.spec import Arguments, Case, Problem, RankContext, Work


def exchanged(
    tensor: torch.Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup | None
) -> torch.Tensor:
    output = tensor.new_empty(sum(received), *tensor.shape[1:])
    dist.all_to_all_single(output, tensor.contiguous(), received, sent, group=group)
    return output


def reference(
    local_embedding_shard: torch.Tensor,
    input_node_ids: torch.Tensor,
    proj_matrix: torch.Tensor,
    num_total_nodes: int,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """local_embedding_shard (S, D), any floating-point dtype: rows r * S to (r + 1) * S - 1 of the table on rank r.
    input_node_ids (Q,), int64 in [0, num_total_nodes): the rows that this rank wants, from any rank, itself included;
        unsorted, with repeats. They differ by rank; Q does not.
    proj_matrix (D, D): this rank's own, another on every rank; same dtype.
    num_total_nodes: W * S.

    Returns (Q, D) in the same dtype: for each id in order, its row of the table times this rank's proj_matrix.
    """
    world_size, rank = dist.get_world_size(group), dist.get_rank(group)
    shard = -(-num_total_nodes // world_size)
    owner = (input_node_ids // shard).clamp_max(world_size - 1)
    order = owner.argsort(stable=True)
    asked = owner.bincount(minlength=world_size)
    wanted = torch.empty_like(asked)
    dist.all_to_all_single(wanted, asked, group=group)
    asked_of, wanted_by = asked.tolist(), wanted.tolist()

    ids = exchanged(input_node_ids[order], asked_of, wanted_by, group)
    rows = exchanged(local_embedding_shard[ids - rank * shard], wanted_by, asked_of, group)
    embedding = torch.empty_like(rows)
    embedding[order] = rows
    return embedding @ proj_matrix


def sizes(case: Case, world_size: int) -> tuple[int, int, int]:
    """Rows of a shard, ids of a rank, features."""
    if "m" in case.sizes:
        shard = -(-max(111000000, case["m"]) // world_size)
        return shard, clamp(case["m"] // world_size, 20000, 200000), 256 if case["n"] >= 256 else 128
    shard = -(-case["nodes"] // world_size) if "nodes" in case.sizes else case["rows_per_rank"]
    return shard, case["queries"], case["features"]


def inputs(case: Case, ctx: RankContext) -> Arguments:
    world_size, rank, device = ctx.world_size, ctx.rank, ctx.device
    shard, queries, features = sizes(case, world_size)
    table = torch.empty(shard, features, dtype=ctx.dtype, device=device)
    for part in table.split(1 << 20):  # a whole draw in float32 would not fit beside the published table
        part.copy_(ctx.randn(*part.shape))
    if case.name == "pkb":
        query = torch.arange(queries, device=device)
        ids = (query + rank) % world_size * shard + (7 * query + rank) % shard
        return table, ids, ctx.randn(features, features), shard * world_size, None
    common = ctx.shared()
    # Half are rows of others that no other rank shares, uniform over a shard, from some owners more than from others:
    # `work` can count on these. The rest are hot rows of anybody.
    once = queries // 2 if world_size > 1 else 0
    owner = common.permutation(world_size)[ctx.skewed(world_size, once, exponent=0.5)]
    another = (rank + ctx.integers(1, max(world_size, 2), once)) % world_size
    owner = torch.where(owner == rank, another, owner)
    row = common.permutation(shard)[rank * once : (rank + 1) * once]
    cold = owner * shard + row
    hot = hot_rows(ctx, common, shard * world_size, queries - once)
    hot = hot * 7919 % (shard * world_size)  # spread over the owners
    ids = torch.cat([cold, hot])[ctx.permutation(queries)]
    # Unit-scale outputs.
    projection = ctx.randn(features, features, dtype=torch.float32) * features**-0.5
    return table, ids, projection.to(ctx.dtype), shard * world_size, None


def illegal(case: Case, world_size: int) -> str | None:
    shard, queries, _ = sizes(case, world_size)
    if case.name != "pkb" and world_size > 1 and world_size * (queries // 2) > shard:
        return f"{shard} rows on a rank are too few for {queries} ids on each of {world_size} ranks"
    return None


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    _, queries, features = sizes(case, world_size)
    row = features * element_bytes
    if case.name == "pkb":
        distinct = queries
        fetched = queries - -(-queries // world_size)
    else:
        # Sixteen ids may change between calls.
        distinct = max(0, queries // 2 - 16)
        fetched = distinct if world_size > 1 else 0
    return Work(
        # A row is projected once for all its repeats.
        flops=2 * distinct * features * features,
        # The ids, each distinct row where it is stored, the matrix, the output.
        hbm_bytes=8 * queries + (distinct + features + queries) * row,
        link_out_bytes=fetched * row,
        link_in_bytes=fetched * row,
    )


PROBLEM = Problem(
    title="Fetch rows of a sharded embedding table by id, then project them",
    family="graph",
    source="WholeGraph",
    tags=("all_to_all", "uneven", "gnn", "embedding", "gather", "gemm"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        # The table has 14.2 GB on each of 4 ranks.
        "pkb": {"m": 1024, "n": 1024},
        # The published mini-batch and width; a table as long as ogbn-products, which no cache holds either.
        "default": {"nodes": 2449029, "queries": 20000, "features": 256},
        # The 768 features of MAG240M and a mini-batch of three hops; 0.8 GB of its table on each rank.
        "large": {"rows_per_rank": 524288, "queries": 131072, "features": 768},
        "odd": {"rows_per_rank": 5003, "queries": 1009, "features": 131},
        "tiny": {"rows_per_rank": 173, "queries": 40, "features": 24},
    },
    tolerance="rounding",
    illegal=illegal,
    # Any row may be asked for.
    changing=(0, 1, 2),
    repair="As published the ids are a fixed stride, the same in every trial and evenly spread over the owners, and "
    "the table of 57 GB is mostly unused. `default` draws ids, some of them hot, from uneven owners and a smaller "
    "table; the projection keeps the scale of its input.",
)
