"""All-gather of tensors whose length differs from rank to rank and is known to nobody else.

Sequence parallelism over packed or multimodal samples collects uneven shards with it: first the shapes, then the data.
"""

import torch
import torch.distributed as dist

from problems.spec import Arguments, Case, Problem, RankContext, Work

# torch 2.13 renamed the call and warns on every use of the old name; earlier versions know only that.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def reference(x: torch.Tensor, gather_dim: int, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """x: any number of axes, the run's dtype. Its size along `gather_dim` (0 or 1, the same on all ranks) differs from
    rank to rank and from call to call, may be 0, and the other ranks do not know it; the other axes agree.

    Returns all ranks' tensors of the group (None: all ranks) joined along `gather_dim` in rank order, the same
    everywhere. A new tensor.
    """
    ranks = dist.get_world_size(group)
    shapes = torch.empty(ranks * x.dim(), dtype=torch.int64, device=x.device)
    all_gather(shapes, torch.tensor(x.shape, dtype=torch.int64, device=x.device), group=group)
    lengths = [shape[gather_dim] for shape in shapes.view(ranks, x.dim()).tolist()]

    first = x.movedim(gather_dim, 0).contiguous() if gather_dim else x
    joined = first.new_empty(sum(lengths), *first.shape[1:])
    # The own tensor to everybody, in one launch that writes where the parts belong: no padding, no joining afterwards.
    # (NCCL's all-gather of unequal lengths is one broadcast per rank, and gloo has none.)
    outgoing = first.repeat(ranks, *[1] * (first.dim() - 1))
    dist.all_to_all_single(joined, outgoing, lengths, [len(first)] * ranks, group=group)
    return joined.movedim(0, gather_dim).contiguous()


def inputs(case: Case, ctx: RankContext) -> Arguments:
    m, n, common = case["m"], case["n"], ctx.shared()
    if case.name == "pkb":
        return ctx.randn(m, n), 0
    # `default` and `large` keep the published axis, the others draw it.
    gather_dim = 0 if case.name in ("default", "large") else common.integer(0, 2)
    low, high = _lengths(m)
    length = ctx.integer(low, high + 1)
    # In one trial of four some rank has nothing.
    if ctx.world_size > 1 and common.integer(0, 4) == 0 and common.integer(0, ctx.world_size) == ctx.rank:
        length = 0
    return (ctx.randn(length, n) if gather_dim == 0 else ctx.randn(n, length)), gather_dim


def _lengths(m: int) -> tuple[int, int]:
    """Shortest and longest that is not empty."""
    return m - m // 4, m + m // 4


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    # What the shortest ranks have, as one of them may. If one is empty, that one receives from all others.
    least = case["m"] if case.name == "pkb" else _lengths(case["m"])[0]
    block = least * case["n"] * element_bytes
    return Work(
        hbm_bytes=max(2, world_size) * block,
        # With multicast the own block leaves once.
        link_out_bytes=block if world_size > 1 else 0,
        link_in_bytes=(world_size - 1) * block,
    )


PROBLEM = Problem(
    title="All-gather of tensors of different lengths",
    family="context",
    source="VeOmni",
    tags=("all_gather", "all_to_all", "sequence_parallel", "uneven"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024},
        "default": {"m": 1024, "n": 1024},
        # Hidden states of Qwen2.5-VL 7B (3584), about 64k tokens of packed samples on 8 ranks.
        "large": {"m": 8192, "n": 3584},
        "odd": {"m": 1031, "n": 517},
        "tiny": {"m": 14, "n": 40},
    },
    tolerance="exact",
    repair="As published all ranks have the same shape, so that the exchange of sizes can be left out; in `default` "
    "each rank's length is drawn between 3/4 and 5/4 of the published one, and now and then one rank has nothing.",
)
