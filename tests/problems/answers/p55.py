from collections.abc import Callable

import torch

from problems.spec import Arguments
from tests.problems.answers.p54 import dense, up_to_the_own, whole_blocks

TRIAL = {"m": 1024, "n": 1024}  # the published sizes are small


def layer(
    ranks: list[Arguments], seen: Callable[[int, int], torch.Tensor | None], scale: float | None = None
) -> list[torch.Tensor]:
    """The whole layer on the whole sequence, with all heads' weights."""
    tp_sets, cp_sets = (ranks[0][i].sets for i in (6, 7))
    hidden = torch.cat([ranks[rank][0] for rank in cp_sets[0]], dim=1).double()
    scale, total = ranks[0][4] if scale is None else scale, torch.zeros_like(hidden)
    for rank in tp_sets[0]:
        _, w_qkv, w_o, heads, *_ = ranks[rank]
        q, k, v = (
            (hidden @ weight.double().T).unflatten(-1, (heads // len(tp_sets[0]), -1)) for weight in w_qkv.chunk(3)
        )
        total += dense(q, k, v, scale, seen(q.shape[1], len(cp_sets[0]))).flatten(2) @ w_o.double().T
    parts = total.to(ranks[0][0].dtype).chunk(len(cp_sets[0]), dim=1)
    return [parts[rank // len(tp_sets[0])] for rank in range(len(ranks))]


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return layer(ranks, lambda positions, cp: up_to_the_own(positions) if ranks[0][5] else None)


def no_mask(ranks: list[Arguments]) -> list[torch.Tensor]:
    return layer(ranks, lambda positions, cp: None)


def mask_of_blocks(ranks: list[Arguments]) -> list[torch.Tensor]:
    return layer(ranks, whole_blocks)


def no_scale(ranks: list[Arguments]) -> list[torch.Tensor]:
    return layer(ranks, lambda positions, cp: up_to_the_own(positions), scale=1.0)


def plain_mean(ranks: list[Arguments]) -> list[torch.Tensor]:
    return layer(ranks, lambda positions, cp: up_to_the_own(positions), scale=0.0)


def own_heads(ranks: list[Arguments]) -> list[torch.Tensor]:
    """The other ranks' heads are not added."""
    silent = [
        [(a, b, c if rank == own else torch.zeros_like(c), *rest) for rank, (a, b, c, *rest) in enumerate(ranks)]
        for own in range(len(ranks[0][6].sets[0]))
    ]
    answers = [oracle(arguments) for arguments in silent]
    return [answers[rank % len(answers)][rank] for rank in range(len(ranks))]


WRONG = {
    "no mask": no_mask,
    "mask between blocks only": mask_of_blocks,
    "scores not scaled": no_scale,
    "plain mean of the values": plain_mean,
    "own heads only": own_heads,
}
