"""Dispatch plan of expert parallelism: from each rank's routing mask, how many rows every rank sends, receives, and
gets for each of its experts.

What comes before the all-to-all of a mixture-of-experts layer, on the host because the split sizes are needed there
(VeOmni; Megatron-LM has the same step).
"""

import torch
import torch.distributed as dist

from problems.routing import choices, experts_of, one_hot, uneven_experts
from problems.spec import Arguments, Case, Problem, RankContext, Work

# torch 2.13 renamed the call and warns on every use of the old name; earlier versions know only that.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def reference(
    expert_mask: torch.Tensor, num_experts: int, group: dist.ProcessGroup | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Expert x belongs to rank x // local, where local = num_experts // world_size. All four results are on the host,
    and complete when the call returns.

    expert_mask: (num_experts, slots, tokens), contiguous, float32; this rank's tokens. An element is exactly 0 or 1: 1
        if that slot of the token holds that expert. Usually a slot holds one expert, but nothing is guaranteed: it may
        hold none or several, and two slots of a token may hold the same one; every 1 counts.
    num_experts: divides evenly by the number of ranks.
    group: None, the world.

    Returns (input_splits, output_splits, per_local_expert, sum_per_local_expert):
    input_splits: (world_size,), int64, CPU: rows that this rank sends to each rank, one for each 1 in the mask.
    output_splits: (world_size,), int64, CPU: rows that this rank receives from each rank.
    per_local_expert: (world_size, local), dtype of the mask, CPU: [s, l] = rows from rank s for this rank's expert l.
    sum_per_local_expert: (local,), dtype of the mask, CPU: its sums over s.
    """
    world_size, rank = dist.get_world_size(group), dist.get_rank(group)
    local = num_experts // world_size
    counts = expert_mask.sum(dim=(1, 2))
    gathered = counts.new_empty(world_size * num_experts)
    all_gather(gathered, counts, group=group)
    table = gathered.cpu().view(world_size, num_experts)  # the only wait for the device
    input_splits = table[rank].view(world_size, local).sum(dim=1).to(torch.int64)
    per_local_expert = table[:, rank * local : (rank + 1) * local].contiguous()
    return input_splits, per_local_expert.sum(dim=1).to(torch.int64), per_local_expert, per_local_expert.sum(dim=0)


def inputs(case: Case, ctx: RankContext) -> Arguments:
    experts, tokens, top_k = experts_of(case, ctx.world_size), case["m"], case["top_k"]
    if case.name == "pkb":  # with replacement, balanced
        selected = ctx.integers(0, experts, tokens, top_k)
    else:
        selected = choices(ctx, ctx.rank, tokens, experts, top_k, ctx.world_size)
    return one_hot(selected, experts, ctx.wide), experts, None


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    experts = experts_of(case, world_size)
    mask = experts * case["top_k"] * case["m"]
    # One count for each expert of another rank leaves, as many arrive for the own ones; 16 bits hold a count.
    link = (world_size - 1) * (experts // world_size) * element_bytes
    return Work(flops=mask, hbm_bytes=mask * max(element_bytes, 4), link_out_bytes=link, link_in_bytes=link)


PROBLEM = Problem(
    title="Expert-parallel dispatch plan: split sizes from a routing mask",
    family="expert",
    source="VeOmni",
    tags=("moe", "all_gather"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "experts": 8, "top_k": 2},
        "default": {"m": 1024, "experts": 8, "top_k": 2},
        # DeepSeek-V3: 256 experts, 8 per token; 16384 tokens of prefill on each rank.
        "large": {"m": 16384, "experts": 256, "top_k": 8},
        "odd": {"m": 1031, "experts_per_rank": 3, "top_k": 3},
        "tiny": {"m": 23, "experts_per_rank": 2, "top_k": 2},
    },
    tolerance="exact",
    repair="Published routing is uniform, so that every count is near its average and a plan of equal splits is nearly "
    "right; `default` draws skewed routing that differs between ranks and leaves an expert without tokens.",
    illegal=uneven_experts,
    # Any zeros and ones are a mask.
    changing=(0,),
)
