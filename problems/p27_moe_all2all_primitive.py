"""All-to-all of rows with explicit split sizes: each rank sends as many consecutive rows to each rank as its list says.

The exchange of a mixture-of-experts layer, where routing decides how many tokens go where (VeOmni, Megatron-LM).
"""

import torch
import torch.distributed as dist

from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(
    local_tensor: torch.Tensor,
    input_split_sizes: list[int] | None = None,
    output_split_sizes: list[int] | None = None,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Rows go to the ranks in their order: the first input_split_sizes[0] to rank 0, the next to rank 1, and so on.
    What arrives is put together in the order of the ranks that sent it.

    local_tensor: (m, n); m is the same on every rank.
    input_split_sizes: world_size ints (on the host), rows for each rank, zeros among them; they add up to m.
    output_split_sizes: world_size ints, rows from each rank. The lists of all ranks agree: on rank r, [s] is entry [r]
        of the input_split_sizes of rank s. The sum differs between ranks, and both lists between calls.
    group: None, the world. (Without the lists: equal splits.)

    Returns (sum of output_split_sizes, n), dtype of local_tensor, every bit as it was.
    """
    if output_split_sizes is None:
        received = torch.empty_like(local_tensor)
    else:
        received = local_tensor.new_empty(sum(output_split_sizes), *local_tensor.shape[1:])
    dist.all_to_all_single(received, local_tensor.contiguous(), output_split_sizes, input_split_sizes, group=group)
    return received


def hot_rows(m: int) -> int:
    """Rows that the busiest receiver gets from every rank, at least."""
    return 2 * m // 5


def split(ctx: RankContext, rank: int, m: int) -> list[int]:
    """Rows that a rank sends to each rank: much to one that all ranks share, to some next to nothing."""
    hot, own = ctx.shared().integer(0, ctx.world_size), ctx.stream(f"splits of rank {rank}")
    weights = own.uniform(ctx.world_size, dtype=torch.float64) ** 2
    if ctx.world_size > 2:
        weights[own.integer(0, ctx.world_size)] = 0
    rest = m - hot_rows(m)
    edges = (weights.cumsum(0) / weights.sum() * rest).round().long().tolist()
    sizes = [after - before for before, after in zip([0, *edges[:-1]], edges, strict=True)]
    sizes[hot] += m - sum(sizes)
    return sizes


def inputs(case: Case, ctx: RankContext) -> Arguments:
    m, world_size = case["m"], ctx.world_size
    if case.name == "pkb":
        splits = [[m // world_size] * world_size] * world_size
    else:
        splits = [split(ctx, rank, m) for rank in range(world_size)]
    return ctx.randn(m, case["n"]), list(splits[ctx.rank]), [own[ctx.rank] for own in splits], None


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    m, row = case["m"], case["n"] * element_bytes
    if case.name == "pkb":
        link = m * (world_size - 1) / world_size * row
        return Work(hbm_bytes=2 * m * row, link_out_bytes=link, link_in_bytes=link)
    # What is sure of the busiest receiver, and of what anybody else sends.
    hot = hot_rows(m)
    others = world_size - 1
    return Work(
        hbm_bytes=(m + world_size * hot) * row,
        link_out_bytes=hot * row if others else 0,
        link_in_bytes=others * hot * row,
    )


def illegal(case: Case, world_size: int) -> str | None:
    if case.name == "pkb" and case["m"] % world_size:
        return f"m={case['m']} does not divide evenly over {world_size} ranks"
    return None


PROBLEM = Problem(
    title="All-to-all of rows with uneven split sizes",
    family="expert",
    source="VeOmni",
    tags=("moe", "all_to_all", "uneven"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024},
        "default": {"m": 1024, "n": 1024},
        # A DeepSeek-V3 layer: 2048 tokens with 8 experts each, hidden size 7168.
        "large": {"m": 16384, "n": 7168},
        "odd": {"m": 1031, "n": 517},
        "tiny": {"m": 13, "n": 40},
    },
    tolerance="exact",
    repair="Published splits are all equal, so that the lists need not be read; `default` draws them uneven, with one "
    "busy receiver and zeros.",
    illegal=illegal,
)
