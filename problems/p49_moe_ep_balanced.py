"""Mixture-of-experts forward pass with exactly one expert on each rank: route each token, send it to the ranks that
own its experts, apply their gated network there, send the results back and add them up by routing weight.

Expert parallelism at its widest, as in Mixtral 8x7B on eight ranks (VeOmni). Otherwise the computation of problem 31.
"""

import torch
import torch.distributed as dist
from torch.nn.functional import linear, silu

from problems.routing import forward_inputs, forward_work, unsure_tokens
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
    """Expert x is rank x's gated network: num_experts is the number of ranks.

    hidden_states: (tokens, hidden), this rank's tokens; as many on every rank.
    gate_weight, gate_bias: (num_experts, hidden) and (num_experts,), dtype of hidden_states: the router of this rank's
        tokens. The same on all ranks (in case `pkb` every rank has its own).
    gate_proj, up_proj, down_proj: linear layers with bias, hidden to inner, hidden to inner, inner to hidden, dtype of
        hidden_states: this rank's network.
    num_experts: the number of ranks.
    top_k: experts of a token, distinct.
    group: None, the world.

    Routing: p = softmax(hidden_states @ gate_weight.T + gate_bias) over the experts; a token goes to the top_k experts
    of largest p, and its weights are those p, not made to add up to one. (Tokens whose choice hangs on rounding are not
    judged.) It is skewed: some ranks get several times as many rows as others, and one may get none.

    Returns (tokens, hidden), dtype of hidden_states: the sum over a token's experts x of p[x] * f(token), where f is
    the network of rank x, f(z) = down_proj(silu(gate_proj(z)) * up_proj(z)).
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


def choices_per_token(case: Case, world_size: int) -> int:
    """`top_k`, but one of two experts: else every token would go everywhere, and nothing be routed."""
    return case["top_k"] if case.name == "pkb" else min(case["top_k"], max(1, world_size - 1))


def inputs(case: Case, ctx: RankContext) -> Arguments:
    experts = ctx.world_size
    return forward_inputs(case, ctx, experts, choices_per_token(case, experts), experts)


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    top_k = choices_per_token(case, world_size)
    return forward_work(case["m"], case["n"], case["inner"], world_size, top_k, world_size, element_bytes)


def illegal(case: Case, world_size: int) -> str | None:
    top_k = choices_per_token(case, world_size)
    return f"{world_size} experts are too few for {top_k} per token" if top_k > world_size else None


PROBLEM = Problem(
    title="Mixture-of-experts forward with one expert per rank",
    family="expert",
    source="VeOmni",
    tags=("moe", "gemm", "all_to_all", "uneven"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024, "inner": 128, "top_k": 2},
        "default": {"m": 1024, "n": 1024, "inner": 128, "top_k": 2},
        # Mixtral 8x7B: hidden size 4096, inner size 14336, 2 experts per token, of 8 on 8 ranks.
        "large": {"m": 2048, "n": 4096, "inner": 14336, "top_k": 2},
        "odd": {"m": 1031, "n": 517, "inner": 251, "top_k": 3},
        "tiny": {"m": 29, "n": 40, "inner": 12, "top_k": 2},
    },
    tolerance="rounding",
    repair="The published router has logits of standard deviation 32, so that nearly all weight falls on the first "
    "expert, rounding moves weights and choices, and loads are even; `default` has one router for all ranks with "
    "weights of order one, gaps between chosen and other experts, biases that matter, and skewed loads; of two "
    "experts each token takes one.",
    illegal=illegal,
    # A bias would move all tokens at once, and with them the gaps.
    changing=(0, 1, 3, 4, 5),
    unsure=unsure_tokens,
)
