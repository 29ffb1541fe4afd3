"""Push of sparse gradient rows to the ranks that own them, index modulo world size. (DGL's distributed NodeEmbedding
with SparseAdam.)
"""

import torch
import torch.distributed as dist

from problems.graphs import clamp, hot_rows, ragged, round_up
from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(
    idx: torch.Tensor, value: torch.Tensor, num_nodes: int, group: dist.ProcessGroup | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """idx (nnz,), int64 in [0, num_nodes): the row of a global table that each row of `value` is for; unsorted, with
        repeats.
    value (nnz, h), any floating-point dtype. Both differ by rank; nnz and h do not.
    num_nodes: rows of the table, a multiple of W. Not used.

    Row i belongs to rank idx[i] mod W. Returns (indices, rows) of what belongs to this rank, from all ranks in rank
    order and of each rank in its original order: indices (count,) int64, still global; rows (count, h) in the dtype of
    `value`. Repeats are kept. How many arrive from where is known to nobody beforehand; it may be nothing.
    """
    world_size = dist.get_world_size(group)
    owner = idx % world_size
    order = owner.argsort(stable=True)
    sent = owner.bincount(minlength=world_size)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    splits = received.tolist(), sent.tolist()
    indices = idx.new_empty(sum(splits[0]))
    rows = value.new_empty(len(indices), value.shape[1])
    dist.all_to_all_single(indices, idx[order], *splits, group=group)
    dist.all_to_all_single(rows, value[order], *splits, group=group)
    return indices, rows


def sizes(case: Case, world_size: int) -> tuple[int, int, int]:
    """Rows of a rank, features of a row, rows of the table."""
    if "m" in case.sizes:
        m, n = case["m"], case["n"]
        return clamp(m // world_size, 1024, 50000), clamp(n, 8, 128), round_up(max(100000, m), world_size)
    return case["nnz"], case["features"], round_up(case["nodes"], world_size)


def inputs(case: Case, ctx: RankContext) -> Arguments:
    world_size = ctx.world_size
    nnz, features, nodes = sizes(case, world_size)
    if case.name == "pkb":
        return ctx.integers(0, nodes, nnz), ctx.randn(nnz, features), nodes, None
    common = ctx.shared()
    # From four ranks on, one owner gets nothing. A rank keeps a W-th of its rows, so that `work` can count on the rest.
    idle = common.integer(0, world_size) if world_size >= 4 else -1
    kept = 0 if ctx.rank == idle else nnz if world_size == 1 else nnz // world_size
    others = [rank for rank in range(world_size) if rank not in (idle, ctx.rank)]
    counts = [0] * world_size
    counts[ctx.rank] = kept
    for rank, count in zip(others, ragged(ctx, len(others), nnz - kept), strict=True):
        counts[rank] = count
    owner = torch.arange(world_size, device=ctx.device).repeat_interleave(torch.tensor(counts, device=ctx.device))
    row = hot_rows(ctx, common, nodes // world_size, nnz)
    idx = (owner + world_size * row)[ctx.permutation(nnz)]
    return idx, ctx.randn(nnz, features), nodes, None


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    nnz, features, _ = sizes(case, world_size)
    row = features * element_bytes
    # Drawn uniformly, as published, a W-th is kept on average; sixteen indices may change between calls. An index
    # follows from few bits, so only rows count.
    spare = 4 * int(nnz**0.5) if case.name == "pkb" else 16
    link = max(0, nnz - nnz // world_size - spare) * row if world_size > 1 else 0
    return Work(hbm_bytes=2 * nnz * (8 + row), link_out_bytes=link, link_in_bytes=link)


PROBLEM = Problem(
    title="Push gradient rows to their owners by index modulo world size",
    family="graph",
    source="DGL",
    tags=("all_to_all", "uneven", "gnn", "embedding"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024},
        "default": {"m": 1024, "n": 1024},
        # The nodes of ogbn-papers100M and its 128 features; half a million rows touched in a step of each rank.
        "large": {"nnz": 524288, "features": 128, "nodes": 111059956},
        "odd": {"nnz": 1031, "features": 67, "nodes": 10007},
        "tiny": {"nnz": 53, "features": 12, "nodes": 300},
    },
    tolerance="exact",
    # Any row may be for any index.
    changing=(0, 1),
    repair="As published every pair of ranks exchanges nearly the same number of rows, which rewards buffers of a "
    "fixed size. `default` draws hot indices and uneven counts, and from four ranks on one owner gets nothing.",
)
