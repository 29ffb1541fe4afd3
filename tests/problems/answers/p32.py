from collections.abc import Callable

import torch

from problems.spec import Arguments
from tests.problems.answers.p31 import Network, dense, wrong

SIZES = 12
"""Where num_experts and top_k are."""


def adapted(own: Arguments, bias: bool = True, adapters: tuple[int, ...] = (0, 1, 2)) -> Network:
    """The network with these of its adapters merged into the projections."""

    def layer(z: torch.Tensor, i: int) -> torch.Tensor:
        linear, low, high = own[3 + i], own[6 + 2 * i], own[7 + 2 * i]
        weight = linear.weight.detach() + (high @ low if i in adapters else 0)
        return z @ weight.T + (linear.bias.detach() if bias else 0)

    def apply(z: torch.Tensor) -> torch.Tensor:
        a = layer(z, 0)
        return layer(a * torch.sigmoid(a) * layer(z, 1), 2)

    return apply


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return dense(ranks, network=adapted, sizes=SIZES)


def only(*adapters: int) -> Callable[[list[Arguments]], list[torch.Tensor]]:
    return lambda ranks: dense(ranks, network=adapted, sizes=SIZES, adapters=adapters)


WRONG = wrong(network=adapted, sizes=SIZES) | {
    "no adapters": only(),
    "no adapter of the gate": only(1, 2),
    "no adapter of the up projection": only(0, 2),
    "no adapter of the down projection": only(0, 1),
}
