from typing import Any

import torch

from problems.spec import Arguments

NEEDLESS = {
    name: "one number, with a scale of its own, is exact in any format"
    for name in ("int8 on the wire, a scale per row", "int8 on the wire, a scale per 32 values", "fp8 on the wire")
}


def norm_of(ranks: list[Arguments]) -> torch.Tensor:
    everything = torch.cat([grad.flatten() for grads, *_ in ranks for grad in grads if grad is not None])
    return everything.to(torch.promote_types(everything.dtype, torch.float32)).square().sum().sqrt()


def clipped(own: Arguments, norm: torch.Tensor, reported: torch.Tensor | None = None) -> Any:
    grads, limit, _, _ = own
    factor = min(1.0, limit / float(norm))
    return norm if reported is None else reported, ([None if grad is None else grad * factor for grad in grads],)


def oracle(ranks: list[Arguments]) -> list[Any]:
    return [clipped(own, norm_of(ranks)) for own in ranks]


def unclipped(ranks: list[Arguments]) -> list[Any]:
    return [(norm_of(ranks), (own[0],)) for own in ranks]


def locally(ranks: list[Arguments]) -> list[Any]:
    return [clipped(own, norm_of([own]), norm_of(ranks)) for own in ranks]


def first_only(ranks: list[Arguments]) -> list[Any]:
    answers = [clipped(own, norm_of(ranks)) for own in ranks]
    return [(norm, ([grads[0], *own[0][1:]],)) for (norm, (grads,)), own in zip(answers, ranks, strict=True)]


def largest(ranks: list[Arguments]) -> list[Any]:
    norm = torch.stack([norm_of([([grad], *own[1:])]) for own in ranks for grad in own[0] if grad is not None]).amax()
    return [clipped(own, norm) for own in ranks]


WRONG = {
    "not clipped": unclipped,
    "clipped by the own norm": locally,
    "only the first tensor clipped": first_only,
    "the largest tensor's norm": largest,
}
