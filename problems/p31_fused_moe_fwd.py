"""Mixture-of-experts forward pass with expert parallelism: route each token to its best experts, send it to the ranks
that own them, apply their gated network there, send the results back and add them up by routing weight.

The feed-forward block of mixture-of-experts transformers, as VeOmni runs it.
"""

import torch
import torch.distributed as dist
from torch.nn.functional import linear, silu

from problems.routing import experts_of, forward_inputs, forward_work, uneven_experts, unsure_tokens
from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(
    hidden_states: torch.Tensor,
    gate_weight: torch.Tensor,
    gate_bias: torch.Tensor,
    gate_proj: torch.nn.Linear,
    up_proj: torch.nn.Linear,
    down_proj: torch.nn.Linear,
    num_experts: int,
    top_k: int,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Expert x belongs to rank x // local, where local = num_experts // world_size. A rank has one gated network,
    which all of its experts share; networks of different ranks differ.

    hidden_states: (tokens, hidden), this rank's tokens; as many on every rank.
    gate_weight, gate_bias: (num_experts, hidden) and (num_experts,), dtype of hidden_states: the router of this rank's
        tokens. The same on all ranks (in case `pkb` every rank has its own).
    gate_proj, up_proj, down_proj: linear layers with bias, hidden to inner, hidden to inner, inner to hidden, dtype of
        hidden_states: this rank's network.
    num_experts: divides evenly by the number of ranks.
    top_k: experts of a token, distinct.
    group: None, the world.

    Routing: p = softmax(hidden_states @ gate_weight.T + gate_bias) over the experts; a token goes to the top_k experts
    of largest p, and its weights are those p, not made to add up to one. (Tokens whose choice hangs on rounding are not
    judged.) It is skewed: some ranks get several times as many rows as others, and an expert may get none.

    Returns (tokens, hidden), dtype of hidden_states: the sum over a token's experts x of p[x] * f(token), where f is
    the network of the rank that owns x, f(z) = down_proj(silu(gate_proj(z)) * up_proj(z)).
    """
    world_size = dist.get_world_size(group)
    x = hidden_states.reshape(-1, hidden_states.shape[-1])
    p = linear(x, gate_weight, gate_bias).softmax(dim=-1)
    weights, experts = p.topk(top_k, dim=-1)
    # One row for each choice, in the order of the ranks that own the experts.
    owners = experts.flatten() // (num_experts // world_size)
    order = owners.argsort(stable=True)
    sends = (owners == torch.arange(world_size, device=x.device)[:, None]).sum(dim=1)
    receives = torch.empty_like(sends)
    dist.all_to_all_single(receives, sends, group=group)
    input_splits, output_splits = torch.stack((sends, receives)).tolist()
    rows = x[order // top_k]
    arrived = rows.new_empty(sum(output_splits), rows.shape[1])
    dist.all_to_all_single(arrived, rows, output_splits, input_splits, group=group)
    results = down_proj(silu(gate_proj(arrived)) * up_proj(arrived))
    returned = torch.empty_like(rows)
    dist.all_to_all_single(returned, results, input_splits, output_splits, group=group)
    # Back in the order of tokens and choices.
    chosen = torch.empty_like(returned)
    chosen[order] = returned
    return (chosen.view(len(x), top_k, -1) * weights[..., None]).sum(dim=1)


def inputs(case: Case, ctx: RankContext) -> Arguments:
    return forward_inputs(case, ctx, experts_of(case, ctx.world_size), case["top_k"], ctx.world_size)


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    experts = experts_of(case, world_size)
    return forward_work(case["m"], case["n"], case["inner"], experts, case["top_k"], world_size, element_bytes)


PROBLEM = Problem(
    title="Mixture-of-experts forward: route, dispatch, gated network, combine",
    family="expert",
    source="VeOmni",
    tags=("moe", "gemm", "all_to_all", "uneven"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024, "inner": 128, "experts": 8, "top_k": 2},
        "default": {"m": 1024, "n": 1024, "inner": 128, "experts": 8, "top_k": 2},
        # A DeepSeek-V3 layer: hidden size 7168, inner size 2048, 256 experts, 8 per token.
        "large": {"m": 2048, "n": 7168, "inner": 2048, "experts": 256, "top_k": 8},
        "odd": {"m": 1031, "n": 517, "inner": 251, "experts_per_rank": 3, "top_k": 3},
        "tiny": {"m": 29, "n": 40, "inner": 12, "experts_per_rank": 2, "top_k": 2},
    },
    tolerance="rounding",
    repair="The published router has logits of standard deviation 32, so that nearly all weight falls on the first "
    "expert, rounding moves weights and choices, and loads are even; `default` has one router for all ranks with "
    "weights of order one, gaps between chosen and other experts, biases that matter, and skewed loads.",
    illegal=uneven_experts,
    # A bias would move all tokens at once, and with them the gaps.
    changing=(0, 1, 3, 4, 5),
    unsure=unsure_tokens,
)
