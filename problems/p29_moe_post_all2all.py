"""Token combine of expert parallelism: send the experts' results back to the ranks of their tokens, weigh each by its
routing weight, and add up each token's.

The second half of a mixture-of-experts layer in VeOmni, after problem 28 and the experts; the all-to-all dispatcher of
Megatron-LM does the same.
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
    expert_outputs: torch.Tensor,
    routing_weights: torch.Tensor,
    selected_experts: torch.Tensor,
    num_experts: int,
    input_splits: list[int],
    output_splits: list[int],
    num_global_tokens_per_local_expert: torch.Tensor,
    routing_map: torch.Tensor,
    local_input_permutation_mapping: torch.Tensor,
    org_hidden_states_shape: tuple[int, ...],
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Expert x belongs to rank x // local, where local = num_experts // world_size. The splits are those of the way to
    the experts, so here `output_splits` says what is sent and `input_splits` what arrives.

    expert_outputs: (sum of output_splits, hidden): results of this rank's experts, first all rows of its expert 0, then
        those of expert 1, and so on; of one expert in the order of the ranks they came from, of one rank as received.
    routing_weights: (tokens, top_k), dtype of expert_outputs: weight of each choice of this rank's tokens.
    selected_experts: (tokens, top_k), int64: the experts of each token, distinct and ascending.
    num_experts: divides evenly by the number of ranks.
    input_splits: world_size ints (on the host): rows of this rank's tokens at each rank; their sum is top_k * tokens.
    output_splits: world_size ints: rows of each rank's tokens here.
    num_global_tokens_per_local_expert: (world_size, local), int64, on the device: rows from rank s for this rank's
        expert l. Splits and table agree with each other between ranks, and with the routing. (Only in case `pkb` they
        do not agree with the routing: all entries are equal there. The steps below still are what is asked for.)
    routing_map: (num_experts, tokens), bool: whether the token has the expert; says the same as selected_experts.
    local_input_permutation_mapping: (top_k * tokens,), int64: the token of each row in the order in which this rank
        sent them: all rows of expert 0 in the order of tokens, then those of expert 1, and so on.
    org_hidden_states_shape: (tokens, hidden).
    group: None, the world.

    Steps: bring the rows into the order (source rank, expert); send each source its rows; what arrives from ranks 0, 1,
    ... is in the order of local_input_permutation_mapping; multiply each row by the weight of its token's choice; add
    each token's rows.

    Returns (tokens, hidden), dtype of expert_outputs: row t is the sum over the choices j of
    routing_weights[t, j] * (the row of token t and expert selected_experts[t, j]).
    """
    world_size = dist.get_world_size(group)
    local = num_experts // world_size
    tokens, top_k = selected_experts.shape
    # From (expert, source) to (source, expert), in one gather: a label for each chunk, then for each row.
    table = num_global_tokens_per_local_expert
    labels = torch.arange(world_size * local, device=table.device).view(world_size, local).T.reshape(-1)
    label_of_row = labels.repeat_interleave(table.T.reshape(-1), output_size=len(expert_outputs))
    sent = expert_outputs[label_of_row.argsort(stable=True)]
    arrived = sent.new_empty(sum(input_splits), sent.shape[1])
    dist.all_to_all_single(arrived, sent, input_splits, output_splits, group=group)
    # Each token's rows are in the order of its experts, as its weights are.
    rows_of_token = local_input_permutation_mapping.argsort(stable=True)
    weighted = arrived[rows_of_token].view(tokens, top_k, -1) * routing_weights[..., None]
    return weighted.sum(dim=1).view(org_hidden_states_shape)


def inputs(case: Case, ctx: RankContext) -> Arguments:
    m, n, top_k = case["m"], case["n"], case["top_k"]
    world_size, experts = ctx.world_size, experts_of(case, ctx.world_size)
    if case.name == "pkb":
        selected = distinct_uniform(ctx, m, experts, top_k)
        sends, receives, table = published_plan(m, experts, world_size, top_k, ctx.device)
    else:
        selected = choices(ctx, ctx.rank, m, experts, top_k, world_size)
        sends, receives, table = plan(counts(ctx, m, experts, top_k), ctx.rank)
    weights = ctx.randn(m, top_k, dtype=torch.float32).softmax(dim=1).to(ctx.dtype)
    routing_map = one_hot(selected, experts, torch.bool).any(dim=1)
    mapping = routing_map.nonzero()[:, 1].contiguous()
    outputs = ctx.randn(sum(receives), n)
    return outputs, weights, selected, experts, sends, receives, table, routing_map, mapping, (m, n), None


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    m, n, top_k = case["m"], case["n"], case["top_k"]
    # A rank may add up its rows of a token before it sends them, and the switch those of several ranks: one arrives.
    tokens, pairs = guaranteed(m, top_k, world_size)
    return Work(
        flops=(2 * top_k - 1) * m * n,
        hbm_bytes=(top_k + 1) * m * n * element_bytes,
        link_out_bytes=pairs * n * element_bytes,
        link_in_bytes=tokens * n * element_bytes,
    )


PROBLEM = Problem(
    title="Expert combine: undo the grouping, all-to-all back, weighted sum per token",
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
    tolerance="rounding",
    repair="Published splits and counts are equal and contradict the routing, so that rows have nothing to do with the "
    "token they are added to; `default` derives them from all ranks' skewed routing, with experts without tokens.",
    illegal=uneven_rows,
    changing=(0, 1),
)
