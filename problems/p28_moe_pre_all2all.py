"""Token dispatch of expert parallelism: copy each token once for each of its experts, send the copies to the ranks
that own the experts, and group what arrives by expert.

The first half of a mixture-of-experts layer in VeOmni; the all-to-all dispatcher of Megatron-LM does the same.
"""

import torch
import torch.distributed as dist

from problems.routing import (
    choices,
    counts,
    distinct_uniform,
    experts_of,
    guaranteed,
    one_hot,
    plan,
    published_plan,
    uneven_rows,
)
from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(
    hidden_states: torch.Tensor,
    expert_mask: torch.Tensor,
    num_experts: int,
    input_splits: list[int],
    output_splits: list[int],
    num_global_tokens_per_local_expert: torch.Tensor,
    group: dist.ProcessGroup | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Size]:
    """Expert x belongs to rank x // local, where local = num_experts // world_size.

    hidden_states: (tokens, hidden), this rank's tokens.
    expert_mask: (num_experts, slots, tokens), contiguous, float32, exactly 0 or 1: which expert each slot of a token
        holds. One expert per slot, and the slots of a token hold different ones.
    num_experts: divides evenly by the number of ranks.
    input_splits: world_size ints (on the host), rows that this rank sends to each rank; their sum is slots * tokens.
    output_splits: world_size ints, rows that it receives from each rank.
    num_global_tokens_per_local_expert: (world_size, local), int64, on the device: rows from rank s for this rank's
        expert l. Rows of any rank for one expert may be none. These three agree with each other between ranks, and
        with the masks. (Only in case `pkb` they do not agree with the masks: all entries are equal there. The steps
        below still are what is asked for: rows are cut by the lists and the table, not by their experts.)
    group: None, the world.

    Returns (rows, routing_map, permutation, shape):
    rows: (sum of output_splits, hidden), dtype of hidden_states: what arrived, first all rows for this rank's expert 0,
        then those for expert 1, and so on; of one expert in the order of the ranks they came from, of one rank as sent.
    routing_map: (num_experts, tokens), dtype of expert_mask: 1 where the token has the expert.
    permutation: (slots * tokens,), int64: the token of each row as sent, all rows of expert 0 (in the order of tokens),
        then those of expert 1, and so on.
    shape: torch.Size (tokens, hidden).
    """
    world_size = dist.get_world_size(group)
    local = num_experts // world_size
    hidden = hidden_states.reshape(-1, hidden_states.shape[-1])
    routing_map = expert_mask.sum(dim=1)
    permutation = routing_map.nonzero()[:, 1].contiguous()
    if sum(input_splits) != len(permutation):
        raise RuntimeError(f"input_splits add up to {sum(input_splits)}, and {len(permutation)} rows are routed")
    arrived = hidden.new_empty(sum(output_splits), hidden.shape[1])
    dist.all_to_all_single(arrived, hidden[permutation], output_splits, input_splits, group=group)
    # From (source, expert) to (expert, source), in one gather: a label for each chunk, then for each row.
    table = num_global_tokens_per_local_expert
    labels = torch.arange(world_size * local, device=table.device).view(local, world_size).T.reshape(-1)
    label_of_row = labels.repeat_interleave(table.reshape(-1), output_size=len(arrived))
    return arrived[label_of_row.argsort(stable=True)], routing_map, permutation, hidden.shape


def inputs(case: Case, ctx: RankContext) -> Arguments:
    m, top_k, experts, world_size = case["m"], case["top_k"], experts_of(case, ctx.world_size), ctx.world_size
    hidden = ctx.randn(m, case["n"])
    if case.name == "pkb":
        selected = distinct_uniform(ctx, m, experts, top_k)
        sends, receives, table = published_plan(m, experts, world_size, top_k, ctx.device)
    else:
        selected = choices(ctx, ctx.rank, m, experts, top_k, world_size)
        sends, receives, table = plan(counts(ctx, m, experts, top_k), ctx.rank)
    return hidden, one_hot(selected, experts, ctx.wide), experts, sends, receives, table, None


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    m, n, top_k, experts = case["m"], case["n"], case["top_k"], experts_of(case, world_size)
    # A token crosses to a rank once, however many experts it has there, and leaves once if the switch multicasts.
    tokens, pairs = guaranteed(m, top_k, world_size)
    # The map is written; of the mask a slot need not be read further than to its expert.
    mask = (experts + top_k) * m * max(element_bytes, 4)
    return Work(
        hbm_bytes=(1 + top_k) * m * n * element_bytes + mask + 8 * top_k * m,
        link_out_bytes=tokens * n * element_bytes,
        link_in_bytes=pairs * n * element_bytes,
    )


PROBLEM = Problem(
    title="Expert dispatch: permute tokens by expert, all-to-all, regroup by local expert",
    family="expert",
    source="VeOmni",
    tags=("moe", "all_to_all", "uneven"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024, "experts": 8, "top_k": 2},
        "default": {"m": 1024, "n": 1024, "experts": 8, "top_k": 2},
        # A DeepSeek-V3 layer: hidden size 7168, 256 experts, 8 per token; 4096 tokens of prefill on each rank.
        "large": {"m": 4096, "n": 7168, "experts": 256, "top_k": 8},
        "odd": {"m": 1031, "n": 517, "experts_per_rank": 3, "top_k": 3},
        "tiny": {"m": 13, "n": 40, "experts_per_rank": 2, "top_k": 2},
    },
    tolerance="exact",
    repair="Published splits and counts are equal and contradict the mask, so that rows reach ranks that do not own "
    "their expert; `default` derives them from all ranks' masks, with skewed routing and experts without tokens.",
    illegal=uneven_rows,
    changing=(0,),
)
