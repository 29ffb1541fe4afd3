"""How tokens choose experts in life: some experts are far more popular than others, and not the same on every rank.

For `inputs`, `work` and `unsure` of the mixture-of-experts problems. A `reference` is shown to models on its own and
must not import from here.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from problems.spec import Arguments, Case, RankContext, Work


def experts_of(case: Case, world_size: int) -> int:
    """`experts`, or `experts_per_rank` times the world size."""
    return case["experts"] if "experts" in case.sizes else case["experts_per_rank"] * world_size


def uneven_experts(case: Case, world_size: int) -> str | None:
    """Why every rank cannot own as many experts, or None if it can."""
    experts = experts_of(case, world_size)
    return f"{experts} experts do not divide evenly over {world_size} ranks" if experts % world_size else None


def uneven_rows(case: Case, world_size: int) -> str | None:
    """Why a rank's rows, one for each choice, cannot go to the experts as the case has it, or None if they can: as
    published every expert gets as many."""
    experts, rows = experts_of(case, world_size), case["m"] * case["top_k"]
    if case.name == "pkb" and rows % experts:
        return f"{rows} rows do not divide evenly over {experts} experts"
    return uneven_experts(case, world_size)


def guaranteed(tokens: int, top_k: int, owners: int) -> tuple[int, int]:
    """What `work` may count on in any draw of `choices`: tokens of a rank that need another one's experts, and how many
    pairs they make with such ranks. (As published, with two choices, nothing is forced and more is certain.)"""
    if owners == 1:
        return 0, 0
    forced = tokens // 4 if top_k == 1 else tokens // 2
    return forced, forced * math.ceil(min(top_k, owners - 1) / 2)


def choices(ctx: RankContext, rank: int, tokens: int, experts: int, top_k: int, owners: int) -> torch.Tensor:
    """(tokens, top_k): the experts of each token of that rank, distinct and ascending; the same whoever asks.

    Popularity follows a power law in an order that all ranks share, changed by a factor of each rank's own; an eighth
    of the experts gets nothing. Each of `owners` ranks owns a block of experts, and `guaranteed` holds."""
    common, own = ctx.stream("popularity"), ctx.stream(f"choices of rank {rank}")
    place = common.permutation(experts).double()
    popularity = -0.8 * torch.log1p(place) + 0.5 * own.randn(experts, dtype=torch.float64)
    popularity[place >= experts - experts // 8] = -math.inf
    # The largest of such sums are a draw without replacement.
    noise = own.uniform(tokens, experts, low=1e-6, high=1 - 1e-6, dtype=torch.float64)
    scores = popularity - torch.log(-torch.log(noise))
    forced, pairs = guaranteed(tokens, top_k, owners)
    if forced:
        best, at = scores[:forced].view(forced, owners, -1).max(dim=2)
        best[:, rank % owners] = -math.inf
        others = best.topk(pairs // forced).indices
        scores[:forced].scatter_(1, others * (experts // owners) + at.gather(1, others), math.inf)
    return scores.topk(top_k).indices[own.permutation(tokens)].sort(dim=1).values


def distinct_uniform(ctx: RankContext, tokens: int, experts: int, top_k: int) -> torch.Tensor:
    """As published: (tokens, top_k), distinct and ascending, every expert as likely."""
    return ctx.uniform(tokens, experts, dtype=torch.float64).topk(top_k).indices.sort(dim=1).values


def one_hot(selected: torch.Tensor, experts: int, dtype: torch.dtype) -> torch.Tensor:
    """(experts, slots, tokens): 1 where that slot of the token holds the expert."""
    return (torch.arange(experts, device=selected.device)[:, None, None] == selected.T).to(dtype)


def counts(ctx: RankContext, tokens: int, experts: int, top_k: int) -> torch.Tensor:
    """(ranks, experts): how many tokens of each rank chose each expert."""
    world_size = ctx.world_size
    chosen = (choices(ctx, rank, tokens, experts, top_k, world_size) for rank in range(world_size))
    return torch.stack([torch.bincount(own.flatten(), minlength=experts) for own in chosen])


def plan(table: torch.Tensor, rank: int) -> tuple[list[int], list[int], torch.Tensor]:
    """Of everybody's `counts`: rows that a rank sends to and receives from each rank, and the rows that it receives for
    each of its own experts, (ranks, experts per rank)."""
    world_size, experts = table.shape
    local = experts // world_size
    mine = table[:, rank * local : (rank + 1) * local].contiguous()
    return table[rank].view(world_size, local).sum(1).tolist(), mine.sum(1).tolist(), mine


def published_plan(tokens: int, experts: int, world_size: int, top_k: int, device: torch.device | str) -> tuple[
    list[int], list[int], torch.Tensor
]:  # fmt: skip
    """As published: equal numbers, whatever the routing says."""
    rows = tokens * top_k
    splits = [rows // world_size] * world_size
    table = torch.full((world_size, experts // world_size), rows // experts, device=device)
    return splits, list(splits), table


def routed(
    ctx: RankContext, selected: torch.Tensor, gate_weight: torch.Tensor, gate_bias: torch.Tensor
) -> torch.Tensor:
    """Hidden states that the router sends to `selected`, about standard normal.

    Logits of chosen experts lie in [1, 2.5], those of the others at least 0.75 below, far enough for any rounding.
    Biases are part of them, so a router without its bias decides otherwise. With many experts the others lie lower, so
    that the chosen ones keep weights of order one."""
    tokens, top_k = selected.shape
    weight, bias = gate_weight.double(), gate_bias.double()
    lower = math.log(max(1.0, len(weight) / (4 * top_k)))
    wide = torch.float64
    logits = ctx.uniform(tokens, len(weight), low=-1.5, high=0.25, dtype=wide) - lower
    logits.scatter_(1, selected, ctx.uniform(tokens, top_k, low=1.0, high=2.5, dtype=wide))
    noise = ctx.randn(tokens, weight.shape[1], dtype=torch.float32).to(wide)
    correction = torch.linalg.solve(weight @ weight.T, (logits - bias - noise @ weight.T).T)
    return (noise + correction.T @ weight).to(ctx.dtype)


def doubtful(
    hidden_states: torch.Tensor, gate_weight: torch.Tensor, gate_bias: torch.Tensor, top_k: int
) -> torch.Tensor:
    """(tokens,): whether the last expert chosen and the first one not chosen are so close that rounding decides."""
    logits = hidden_states.double() @ gate_weight.double().T + gate_bias.double()
    if top_k == logits.shape[1]:
        return torch.zeros(len(logits), dtype=torch.bool, device=logits.device)
    last, next_best = logits.topk(top_k + 1).values[:, -2:].unbind(1)
    eps = torch.finfo(hidden_states.dtype).eps
    # Both logits are rounded, and then the softmax.
    return last - next_best < (1.5 * eps + min(1e-5, 1e3 * eps)) * (1 + last.abs().maximum(next_best.abs()))


def unsure_tokens(
    oracle: torch.Tensor, hidden_states: torch.Tensor, gate_weight: torch.Tensor, gate_bias: torch.Tensor, *others: Any
) -> torch.Tensor:
    """Of an output with one row per token: rows whose routing hangs on rounding. The last arguments are `top_k` and the
    group."""
    return doubtful(hidden_states, gate_weight, gate_bias, others[-2])[:, None].expand(oracle.shape)


Router = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Network = tuple[torch.nn.Linear, torch.nn.Linear, torch.nn.Linear]


def router(ctx: RankContext, tokens: int, hidden: int, experts: int, top_k: int, owners: int) -> Router:
    """Hidden states of a rank, and weight and bias of a router that all ranks share."""
    common = ctx.stream("router")
    weight = common.randn(experts, hidden, dtype=torch.float32) * hidden**-0.5
    gate_weight, gate_bias = weight.to(ctx.dtype), common.randn(experts)
    selected = choices(ctx, ctx.rank, tokens, experts, top_k, owners)
    return routed(ctx, selected, gate_weight, gate_bias), gate_weight, gate_bias


def published_router(ctx: RankContext, tokens: int, hidden: int, experts: int) -> Router:
    """As published: every rank has a router of its own, and logits of standard deviation sqrt(hidden)."""
    return ctx.randn(tokens, hidden), ctx.randn(experts, hidden), ctx.randn(experts)


def network(ctx: RankContext, hidden: int, inner: int) -> Network:
    """A gated network; outputs of order one, and biases that cannot be overlooked."""
    return ctx.linear(hidden, inner), ctx.linear(hidden, inner), ctx.linear(inner, hidden, scale=2 * inner**-0.5)


def published_network(ctx: RankContext, hidden: int, inner: int) -> Network:
    """As published: uniform within 1 / sqrt(inputs), weights and biases."""

    def layer(inputs: int, outputs: int) -> torch.nn.Linear:
        made, bound = ctx.linear(inputs, outputs), inputs**-0.5
        with torch.no_grad():
            made.weight.copy_(ctx.uniform(outputs, inputs, low=-bound, high=bound, dtype=torch.float32))
            made.bias.copy_(ctx.uniform(outputs, low=-bound, high=bound, dtype=torch.float32))
        return made

    return layer(hidden, inner), layer(hidden, inner), layer(inner, hidden)


def forward_inputs(
    case: Case, ctx: RankContext, experts: int, top_k: int, owners: int, expert: RankContext | None = None
) -> Arguments:
    """Of a mixture-of-experts forward pass with one gated network on each of `owners` ranks: hidden states, router,
    network, `experts`, `top_k` and the group. Except as published the network is drawn from `expert`, for ranks that
    hold the same one; from the rank's own stream if it is None."""
    m, n, inner = case["m"], case["n"], case["inner"]
    if case.name == "pkb":
        return *published_router(ctx, m, n, experts), *published_network(ctx, n, inner), experts, top_k, None
    return *router(ctx, m, n, experts, top_k, owners), *network(expert or ctx, n, inner), experts, top_k, None


def forward_work(
    tokens: int, hidden: int, inner: int, experts: int, top_k: int, owners: int, element_bytes: int
) -> Work:
    """Floor of a mixture-of-experts forward pass with one gated network on each of `owners` ranks.

    A token goes to a rank once, however many experts it has there, so at least ceil(top_k / experts per rank) rows per
    token are computed. On the links, what is `guaranteed` crosses (a row leaves once if the switch multicasts, and one
    sum comes back if it adds), or weights do instead: of gate and up projection for the way out, of the down projection
    for the way back."""
    rows = tokens * math.ceil(top_k / max(1, experts // owners))
    remote, pairs = guaranteed(tokens, top_k, owners)
    return Work(
        flops=2 * tokens * hidden * experts + 6 * rows * hidden * inner,
        hbm_bytes=(2 * tokens * hidden + 3 * hidden * inner + experts * hidden) * element_bytes,
        link_out_bytes=min(remote + pairs, inner) * hidden * element_bytes,
        link_in_bytes=(min(pairs, 2 * inner) + min(remote, inner)) * hidden * element_bytes,
    )
