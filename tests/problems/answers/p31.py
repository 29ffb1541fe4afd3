from collections.abc import Callable
from typing import Any

import torch

from problems.spec import Arguments

Network = Callable[[torch.Tensor], torch.Tensor]


def gated(own: Arguments, bias: bool = True) -> Network:
    """The network among a rank's arguments."""
    gate, up, down = own[3:6]

    def layer(z: torch.Tensor, linear: torch.nn.Linear) -> torch.Tensor:
        return z @ linear.weight.detach().T + (linear.bias.detach() if bias else 0)

    def apply(z: torch.Tensor) -> torch.Tensor:
        a = layer(z, gate)
        return layer(a * torch.sigmoid(a) * layer(z, up), down)

    return apply


def weights_of(own: Arguments, experts: int, top_k: int) -> torch.Tensor:
    """(tokens, experts): routing weights, zero where a token does not go."""
    logits = own[0] @ own[1].T + own[2]
    p = logits.exp() / logits.exp().sum(1, keepdim=True)
    least = p.sort(1, descending=True).values[:, top_k - 1 : top_k]
    return torch.where(p >= least, p, 0)


def dense(
    ranks: list[Arguments],
    network: Callable[..., Network] = gated,
    owner: Callable[[int, int], int] | None = None,
    reweigh: Callable[[torch.Tensor], torch.Tensor] = lambda weights: weights,
    sizes: int = 6,
    **how: Any,
) -> list[torch.Tensor]:
    """Every network on every token. `owner(expert, rank of the token)`; `sizes`: where num_experts and top_k are."""
    experts, top_k = ranks[0][sizes : sizes + 2]
    owner = owner or (lambda x, rank: x * len(ranks) // experts)
    networks = [network(own, **how) for own in ranks]
    results = []
    for rank, own in enumerate(ranks):
        weights = reweigh(weights_of(own, experts, top_k))
        every = [apply(own[0]) for apply in networks]
        results.append(sum(weights[:, x : x + 1] * every[owner(x, rank)] for x in range(experts)))
    return results


def without_last(weights: torch.Tensor) -> torch.Tensor:
    """The smallest weight of each token is left out."""
    least = torch.where(weights > 0, weights, torch.inf).amin(1, keepdim=True)
    return torch.where(weights == least, 0, weights)


def normalised(weights: torch.Tensor) -> torch.Tensor:
    return weights / weights.sum(1, keepdim=True)


def no_router_bias(ranks: list[Arguments]) -> list[Arguments]:
    return [(own[0], own[1], torch.zeros_like(own[2]), *own[3:]) for own in ranks]


def wrong(**how: Any) -> dict[str, Callable[[list[Arguments]], list[torch.Tensor]]]:
    """What is tempting in all problems of this kind."""
    return {
        "last choice left out": lambda ranks: dense(ranks, reweigh=without_last, **how),
        "weights made to add up to one": lambda ranks: dense(ranks, reweigh=normalised, **how),
        "no router bias": lambda ranks: dense(no_router_bias(ranks), **how),
        "no biases in the network": lambda ranks: dense(ranks, bias=False, **how),
        "own network only": lambda ranks: dense(ranks, **how | {"owner": lambda x, rank: rank}),
    }


def dealt(ranks: list[Arguments]) -> list[torch.Tensor]:
    return dense(ranks, owner=lambda x, rank: x % len(ranks))


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return dense(ranks)


WRONG = wrong() | {"experts dealt to ranks in turn": dealt}
