from collections.abc import Callable

import torch

from problems.spec import Arguments
from tests.problems.answers.p54 import dense, up_to_the_own, whole_blocks

TRIAL = {"m": 1024, "n": 1024}  # the published sizes are small

Seen = Callable[[int, int], torch.Tensor | None]


def layers(ranks: list[Arguments], seen: Seen, scale: float | None = None, linked: bool = True) -> list[torch.Tensor]:
    """One stage after the other on the whole sequence; unless `linked`, each begins with its own hidden states."""
    answers, whole = [], torch.empty(0)
    for stage, members in enumerate(ranks[0][6].sets):
        if stage == 0 or not linked:
            whole = torch.cat([ranks[rank][0] for rank in members], dim=1).double()
        _, w_qkv, w_o, heads, given, *_ = ranks[members[0]]
        q, k, v = ((whole @ weight.double().T).unflatten(-1, (heads, -1)) for weight in w_qkv.chunk(3))
        mask = seen(q.shape[1], len(members))
        whole = dense(q, k, v, given if scale is None else scale, mask).flatten(2) @ w_o.double().T
        answers += [part.to(w_o.dtype) for part in whole.chunk(len(members), dim=1)]
    return answers


def causally(positions: int, cp: int) -> torch.Tensor:
    return up_to_the_own(positions)


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return layers(ranks, causally if ranks[0][5] else lambda positions, cp: None)


def no_mask(ranks: list[Arguments]) -> list[torch.Tensor]:
    return layers(ranks, lambda positions, cp: None)


def mask_of_blocks(ranks: list[Arguments]) -> list[torch.Tensor]:
    return layers(ranks, whole_blocks)


def no_scale(ranks: list[Arguments]) -> list[torch.Tensor]:
    return layers(ranks, causally, scale=1.0)


def plain_mean(ranks: list[Arguments]) -> list[torch.Tensor]:
    return layers(ranks, causally, scale=0.0)


def stages_apart(ranks: list[Arguments]) -> list[torch.Tensor]:
    return layers(ranks, causally, linked=False)


def last_stage_everywhere(ranks: list[Arguments]) -> list[torch.Tensor]:
    last = oracle(ranks)[-len(ranks[0][6].sets[-1]) :]
    return last * len(ranks[0][6].sets)


WRONG = {
    "no mask": no_mask,
    "mask between blocks only": mask_of_blocks,
    "scores not scaled": no_scale,
    "plain mean of the values": plain_mean,
    "later stages begin with their own hidden states": stages_apart,
    "the last stage's output everywhere": last_stage_everywhere,
}
