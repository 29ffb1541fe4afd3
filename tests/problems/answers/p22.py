from typing import Any

import torch

from problems.spec import Arguments
from tests.problems.answers.p21 import NEEDLESS  # noqa: F401


def squares(grads: list[torch.Tensor]) -> torch.Tensor:
    flat = torch.cat([grad.flatten() for grad in grads])
    return flat.to(torch.promote_types(flat.dtype, torch.float32)).square().sum()


def of_one_replica(ranks: list[Arguments], rank: int) -> list[torch.Tensor]:
    """The experts' gradients on all ranks that share a replica with this one."""
    *_, strided, neighbours = ranks[rank]
    reached = {rank}
    for _ in range(2):
        reached |= {other for ranks in (*strided.sets, *neighbours.sets) if reached & {*ranks} for other in ranks}
    return [grad / ranks[other][4] for other in sorted(reached) for grad in ranks[other][1]]


def answer(own: Arguments, norm: torch.Tensor) -> Any:
    dense, experts, limit, _, ep_size, *_ = own
    factor = min(1.0, limit / float(norm))
    return norm, ([grad * factor for grad in dense], [grad / ep_size * factor for grad in experts])


def oracle(ranks: list[Arguments]) -> list[Any]:
    dense = squares([grad for own in ranks for grad in own[0]])
    return [answer(own, (dense + squares(of_one_replica(ranks, r))).sqrt()) for r, own in enumerate(ranks)]


def unclipped(ranks: list[Arguments]) -> list[Any]:
    return [(norm, own[:2]) for (norm, _), own in zip(oracle(ranks), ranks, strict=True)]


def experts_not_divided(ranks: list[Arguments]) -> list[Any]:
    """In the norm they are."""
    right = [norm for norm, _ in oracle(ranks)]
    return [answer((*own[:4], 1, *own[5:]), norm) for own, norm in zip(ranks, right, strict=True)]


def experts_unclipped(ranks: list[Arguments]) -> list[Any]:
    return [
        (norm, (dense, [grad / own[4] for grad in own[1]]))
        for (norm, (dense, _)), own in zip(oracle(ranks), ranks, strict=True)
    ]


def own_experts(ranks: list[Arguments]) -> list[Any]:
    dense = squares([grad for own in ranks for grad in own[0]])
    return [answer(own, (dense + squares([g / own[4] for g in own[1]])).sqrt()) for own in ranks]


def experts_of_all_replicas(ranks: list[Arguments]) -> list[Any]:
    """Where there is one replica, that is right: then none."""
    dense = squares([grad for own in ranks for grad in own[0]])
    replicas = len(ranks) // (len(of_one_replica(ranks, 0)) // len(ranks[0][1]))
    experts = squares([grad / own[4] for own in ranks for grad in own[1]])
    return [answer(own, (dense + experts * (replicas > 1)).sqrt()) for own in ranks]


WRONG = {
    "not clipped": unclipped,
    "experts not divided": experts_not_divided,
    "experts not clipped": experts_unclipped,
    "own experts only": own_experts,
    "experts of all replicas": experts_of_all_replicas,
}
