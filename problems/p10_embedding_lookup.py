"""Lookup in an embedding table whose rows are sharded over ranks: ids go to the owners, vectors come back.

Row-wise sharded tables of recommender models (DLRM, TorchRec) and vocabularies.
"""

import torch
import torch.distributed as dist

from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(indices: torch.Tensor, local_shard: torch.Tensor) -> torch.Tensor:
    """indices: (n,), int64, global row numbers in [0, W*S) with repeats; n and the ids differ from rank to rank.

    local_shard: (S, N) in the run's dtype; of W ranks rank r holds rows r*S to (r+1)*S - 1 of the table, S the same on
    all. How many ids a rank has for another is known to itself only, differs from pair to pair and may be 0.
    Returns (n, N) in the run's dtype, each rank its own: the rows asked for, not in the order of `indices` but sorted
    by owner (id // S), stably: owner 0's first, those of the same owner in the order in which they were asked for.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    rows = local_shard.shape[0]
    owners = indices // rows
    wanted = indices[torch.argsort(owners, stable=True)]
    counts = torch.bincount(owners, minlength=world_size)
    asked = torch.empty_like(counts)
    dist.all_to_all_single(asked, counts)
    to_send, to_receive = torch.stack((asked, counts)).tolist()
    requests = indices.new_empty(sum(to_send))
    dist.all_to_all_single(requests, wanted, to_send, to_receive)
    answers = local_shard[requests - rank * rows]
    found = local_shard.new_empty(indices.shape[0], local_shard.shape[1])
    dist.all_to_all_single(found, answers, to_receive, to_send)
    return found


CHANGED = 16
"""So many ids may change from call to call."""


def lookups(case: Case, world_size: int) -> list[int]:
    """Of each rank: the first one asks for the most rows, the last one for about half as many."""
    n = case["lookups"]
    return [n - n * rank // (2 * world_size) for rank in range(world_size)]


def asked_of(case: Case, world_size: int, hot: int) -> list[list[int]]:
    """How many ids rank r has for owner o, `[r][o]`. Owner `hot` has the popular rows and gets the most, the next ones
    less and less; with more than two ranks, each rank asks nothing of its successor."""
    table = []
    for rank, n in enumerate(lookups(case, world_size)):
        weights = [1 / (1 + (owner - hot) % world_size) for owner in range(world_size)]
        if world_size > 2:
            weights[(rank + 1) % world_size] = 0.0
        edges = [round(n * sum(weights[:owner]) / sum(weights)) for owner in range(world_size)] + [n]
        table.append([edges[owner + 1] - edges[owner] for owner in range(world_size)])
    return table


def distinct(case: Case, count: int) -> int:
    """How many different rows are among `count` ids for one owner."""
    return min((count + 1) // 2, case["rows"])


def inputs(case: Case, ctx: RankContext) -> Arguments:
    rows, world_size = case["rows"], ctx.world_size
    table = ctx.randn(rows, case["n"])
    if case.name == "pkb":
        return ctx.integers(0, world_size * rows, case["lookups"]), table
    counts = asked_of(case, world_size, ctx.shared().integer(0, world_size))[ctx.rank]
    ids = []
    for owner, count in enumerate(counts):
        different = distinct(case, count)
        # Half of the rows are the owner's most popular ones, which all ranks want, the others anywhere in its shard;
        # popular ones are repeated most.
        popular = ctx.stream(f"owner {owner}").permutation(rows)
        half = different // 2
        chosen = torch.cat((popular[:half], popular[half:][ctx.permutation(rows - half)[: different - half]]))
        repeated = chosen[ctx.skewed(different, count - different)] if count else chosen
        ids += [chosen + owner * rows, repeated + owner * rows]
    mixed = torch.cat(ids)
    return mixed[ctx.permutation(len(mixed))], table


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    row, counts = case["n"] * element_bytes, lookups(case, world_size)
    if case.name == "pkb":
        # Of the ids drawn (W-1)/W lie elsewhere, and most are different: half of that is far below what ever happens.
        elsewhere = case["lookups"] * (world_size - 1) // (2 * world_size)
        return Work(
            hbm_bytes=case["lookups"] * (8 + row) + elsewhere * row,
            link_out_bytes=elsewhere // world_size * row,
            link_in_bytes=elsewhere * row,
        )
    ranks, floors = range(world_size), []
    for hot in ranks:
        needed = [[distinct(case, count) for count in own] for own in asked_of(case, world_size, hot)]
        # A row that several ranks want is read once, and leaves once if the fabric multicasts; at each it must arrive.
        arriving = max(sum(needed[rank]) - needed[rank][rank] for rank in ranks)
        leaving = max((needed[rank][owner] for rank in ranks for owner in ranks if rank != owner), default=0)
        moved = max(counts[rank] * (8 + row) + max(own[rank] for own in needed) * row for rank in ranks)
        floors.append((arriving, leaving, moved))
    arriving, leaving, moved = (min(floor) for floor in zip(*floors, strict=True))
    return Work(
        hbm_bytes=moved - CHANGED * row,
        link_out_bytes=max(leaving - CHANGED, 0) * row,
        link_in_bytes=max(arriving - CHANGED, 0) * row,
    )


PROBLEM = Problem(
    title="Embedding lookup in a row-sharded table: ids to owners, vectors back",
    family="tensor",
    source="TorchRec",
    tags=("all_to_all", "embedding", "uneven"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"lookups": 1024, "rows": 1024, "n": 1024},
        "default": {"lookups": 1024, "rows": 1024, "n": 1024},
        # DLRM-DCNv2 of MLPerf: vectors of 128, 214 lookups for each sample, 2048 samples on each rank.
        "large": {"lookups": 438272, "rows": 2097152, "n": 128},
        "odd": {"lookups": 1031, "rows": 509, "n": 129},
        "tiny": {"lookups": 160, "rows": 61, "n": 10},
    },
    tolerance="exact",
    repair="As published every rank asks every other for nearly the same number of rows and hardly for one twice. Here "
    "ranks ask for different numbers of rows, popular rows (and their owner) are wanted again and again, and some "
    "pairs of ranks exchange nothing.",
    changing=(0, 1),
)
