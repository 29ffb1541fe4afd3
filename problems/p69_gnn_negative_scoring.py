"""Ranks of positive edges among their negatives: the scores of all ranks are gathered on every rank, and each
positive's place among its own negatives is its rank. (Evaluation of link prediction in AWS GraphStorm.)
"""

import torch
import torch.distributed as dist

from problems.graphs import clamp
from problems.spec import Arguments, Case, Problem, RankContext, Work


def gathered(tensor: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """All ranks' rows, in rank order; ranks may have different numbers of them."""
    world_size, rank = dist.get_world_size(group), dist.get_rank(group)
    sizes = torch.zeros(world_size, dtype=torch.int64, device=tensor.device)
    sizes[rank] = len(tensor)
    dist.all_reduce(sizes, group=group)
    received = sizes.tolist()
    output = tensor.new_empty(sum(received), *tensor.shape[1:])
    copies = torch.cat([tensor] * world_size)
    dist.all_to_all_single(output, copies, received, [len(tensor)] * world_size, group=group)
    return output


def reference(
    local_pos_scores: torch.Tensor, local_neg_scores: torch.Tensor, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """local_pos_scores (p,), any floating-point dtype: logits of this rank's positives. p differs by rank and trial and
        is not known to the others.
    local_neg_scores (p, c), same dtype: logits of the c negatives of each positive. c is the same on every rank.

    Scores are compared as sigmoids that are rounded to the scores' dtype. Returns (sum of p,), int64, the same on every
    rank: for each positive, in rank order and then in local order, 1 + the number of its own negatives whose sigmoid
    is larger than its own. So the positive comes first among equals.
    """
    positives, negatives = gathered(local_pos_scores, group), gathered(local_neg_scores, group)
    scores = torch.cat([positives[:, None], negatives], dim=1).sigmoid()
    order = scores.argsort(dim=1, descending=True, stable=True)
    return (order == 0).int().argmax(dim=1) + 1


def counts(case: Case, world_size: int) -> list[int]:
    """Positives of the ranks, in no order but at `pkb`."""
    positives = clamp(case["m"] // world_size, 16, 1280) if "m" in case.sizes else case["positives"]
    step = 1 if case.name == "pkb" else 1 + positives // 8
    return [positives + rank % 3 * step for rank in range(world_size)]


def negatives_of(case: Case) -> int:
    return clamp(case["n"], 100, 1000) if "n" in case.sizes else case["negatives"]


def inputs(case: Case, ctx: RankContext) -> Arguments:
    here, negatives = counts(case, ctx.world_size), negatives_of(case)
    if case.name == "pkb":
        return ctx.randn(here[ctx.rank]), ctx.randn(here[ctx.rank], negatives), None
    rows = here[int(ctx.shared().permutation(ctx.world_size)[ctx.rank])]
    # Sigmoids of positives are odd multiples of 1/16. A negative's is next to one of these, mostly the own one's, at
    # any scale from some roundings of the dtype to half way to the next; or its score is its positive's, bit by bit.
    # That stays true when scores take values from elsewhere, and nothing hangs on rounding.
    level = ctx.integers(0, 8, rows)
    positive = torch.logit((level + 0.5).double() / 8).to(ctx.dtype)
    near = ctx.integers(0, 8, rows, negatives)
    near = torch.where(ctx.uniform(rows, negatives) < 0.5, level[:, None], near)
    least = max(4 * torch.finfo(ctx.dtype).eps, 32 * torch.finfo(torch.float32).eps)
    scale = ctx.uniform(rows, negatives, dtype=torch.float64)
    away = least * (0.4 / 8 / least) ** scale * (2 * ctx.integers(0, 2, rows, negatives) - 1)
    negative = torch.logit((near + 0.5).double() / 8 + away).to(ctx.dtype)
    tied = ctx.uniform(rows, negatives, dtype=torch.float32) < 0.03
    return positive, torch.where(tied, positive[:, None], negative), None


def unsure(
    oracle: torch.Tensor,
    local_pos_scores: torch.Tensor,
    local_neg_scores: torch.Tensor,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Ranks that another way to compute the sigmoid may change: at the published values a few."""
    dtype = local_pos_scores.dtype
    slack = 8 * torch.finfo(torch.promote_types(dtype, torch.float32)).eps

    def bounds(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        exact = scores.double().sigmoid()
        return (exact * (1 - slack)).to(dtype), (exact * (1 + slack)).to(dtype)

    low, high = bounds(local_pos_scores[:, None])
    lows, highs = bounds(local_neg_scores)
    certain = (lows > high).sum(1)
    possible = ((highs > low) & (local_neg_scores != local_pos_scores[:, None])).sum(1)
    return gathered((certain != possible).to(torch.uint8), group).bool()


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    here, negatives = counts(case, world_size), negatives_of(case)
    # Only ranks need be exchanged, in as many bytes as they take. The switch brings the own ones to everybody.
    rank_bytes = 1 if negatives < 256 else 2
    several = world_size > 1
    return Work(
        flops=max(here) * negatives,
        hbm_bytes=max(here) * (1 + negatives) * element_bytes + 8 * sum(here),
        link_out_bytes=max(here) * rank_bytes if several else 0,
        link_in_bytes=(sum(here) - min(here)) * rank_bytes,
    )


PROBLEM = Problem(
    title="Gather the scores of positive and negative edges and rank the positives",
    family="graph",
    source="GraphStorm",
    tags=("all_reduce", "all_to_all", "uneven", "gnn", "sort"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024},
        "default": {"m": 1024, "n": 1024},
        # Validation edges of a large graph with 1000 negatives each.
        "large": {"positives": 4096, "negatives": 1000},
        "odd": {"positives": 131, "negatives": 101},
        "tiny": {"positives": 11, "negatives": 29},
    },
    tolerance="exact",
    unsure=unsure,
    changing=(0, 1),
    repair="As published the sigmoids of 1001 scores take some 300 values in 16 bits, so that most ranks hang on how a "
    "sort orders equal ones. `default` draws sigmoids that are equal or further apart than rounding; among equals the "
    "positive comes first. Numbers of positives change from trial to trial.",
)
