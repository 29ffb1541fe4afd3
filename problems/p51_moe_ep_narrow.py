"""Mixture-of-experts forward pass with fewer experts than ranks: blocks of ranks hold a copy of all experts each.
Route each token, send it to the ranks of its block that own its experts, apply their gated network there, send the
results back and add them up by routing weight.

Expert parallelism inside of data parallelism (VeOmni). Within a block the computation of problem 49.
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
    """If there are fewer experts than ranks, blocks of num_experts consecutive ranks hold one expert each: expert x is
    the gated network of rank x of the block, and a token stays in its rank's block. If num_experts is the number of
    ranks, the world is the one block.

    hidden_states: (tokens, hidden), this rank's tokens; as many on every rank.
    gate_weight, gate_bias: (num_experts, hidden) and (num_experts,), dtype of hidden_states: the router of this rank's
        tokens. The same on all ranks (in case `pkb` every rank has its own).
    gate_proj, up_proj, down_proj: linear layers with bias, hidden to inner, hidden to inner, inner to hidden, dtype of
        hidden_states: this rank's network. The same on ranks that hold the same expert (in case `pkb` all differ).
    num_experts: divides the number of ranks, or is that number. 8 ranks: 4; 4 ranks: 2; 2 ranks: 2 (in case `pkb` 1).
    top_k: experts of a token, distinct: 1 of 2, or else 2 (in case `pkb` 2, or all if there are fewer).
    group: None: the blocks are as said above.

    Routing: p = softmax(hidden_states @ gate_weight.T + gate_bias) over the experts; a token goes to the top_k experts
    of largest p, and its weights are those p, not made to add up to one. (Tokens whose choice hangs on rounding are not
    judged.) It is skewed: some ranks get several times as many rows as others.

    Returns (tokens, hidden), dtype of hidden_states: the sum over a token's experts x of p[x] * f(token), where f is
    the network of rank x of the block, f(z) = down_proj(silu(gate_proj(z)) * up_proj(z)).
    """
    world_size, first = dist.get_world_size(group), 0
    if group is None and num_experts < world_size:
        first = dist.get_rank() // num_experts * num_experts
    x = hidden_states.reshape(-1, hidden_states.shape[-1])
    p = linear(x, gate_weight, gate_bias).softmax(dim=-1)
    weights, experts = p.topk(top_k, dim=-1)
    # One row for each choice, in the order of the ranks that own the experts. Ranks outside of the own block get none,
    # so that no group needs to be made.
    owners = first + experts.flatten() // max(1, num_experts // world_size)
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


def experts_in(case: Case, world_size: int) -> int:
    """The largest divisor of the world size that leaves two blocks or more. If there is none: as published a single
    expert, so that nothing is sent; otherwise one for each rank."""
    divisors = [x for x in range(2, world_size // 2 + 1) if world_size % x == 0]
    return max(divisors, default=1 if case.name == "pkb" else world_size)


def choices_per_token(case: Case, world_size: int) -> int:
    """As published two; otherwise fewer than experts, so that something is routed."""
    experts = experts_in(case, world_size)
    return min(2, experts if case.name == "pkb" else max(1, experts - 1))


def inputs(case: Case, ctx: RankContext) -> Arguments:
    experts, top_k = experts_in(case, ctx.world_size), choices_per_token(case, ctx.world_size)
    return forward_inputs(case, ctx, experts, top_k, experts, expert=ctx.stream(f"expert {ctx.rank % experts}"))


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    experts, top_k = experts_in(case, world_size), choices_per_token(case, world_size)
    return forward_work(case["m"], case["n"], case["inner"], experts, top_k, experts, element_bytes)


PROBLEM = Problem(
    title="Mixture-of-experts forward with blocks of ranks that each hold all experts",
    family="expert",
    source="VeOmni",
    tags=("moe", "gemm", "all_to_all", "uneven"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024, "inner": 128},
        "default": {"m": 1024, "n": 1024, "inner": 128},
        # Hidden and inner size of Mixtral 8x7B.
        "large": {"m": 2048, "n": 4096, "inner": 14336},
        "odd": {"m": 1031, "n": 517, "inner": 251},
        "tiny": {"m": 29, "n": 40, "inner": 12},
    },
    tolerance="rounding",
    repair="As published two ranks have one expert and send nothing, four have two of which every token takes both, "
    "and the router's logits of standard deviation 32 put nearly all weight on one expert; `default` has fewer "
    "choices than experts, one router for all ranks with weights of order one, gaps between chosen and other experts, "
    "biases that matter, skewed loads, and copies of the experts in all blocks.",
    # A bias would move all tokens at once, and with them the gaps.
    changing=(0, 1, 3, 4, 5),
    unsure=unsure_tokens,
)
