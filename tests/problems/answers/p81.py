from collections.abc import Callable

import torch

from problems.spec import Arguments

Answer = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def answer(ranks: list[Arguments], loses: Callable[[int, int], bool]) -> Answer:
    """`loses(i, j)`: whether i is suppressed if it overlaps j."""
    wide = torch.promote_types(ranks[0][0].dtype, torch.float32)
    masks = torch.cat([own[0] for own in ranks]).to(wide)
    threshold, hidden = ranks[0][4], torch.zeros(len(masks), dtype=torch.bool)
    seen = masks.flatten(1) > 0
    for i in range(len(masks)):
        for j in range(len(masks)):
            if i != j and loses(i, j):
                both, either = int((seen[i] & seen[j]).sum()), int((seen[i] | seen[j]).sum())
                hidden[i] |= both / max(either, 1) >= threshold
    masks[hidden] = -10
    return masks, torch.cat([own[1] for own in ranks]).to(wide), hidden


def owners(ranks: list[Arguments]) -> list[int]:
    return [rank for rank, count in enumerate(ranks[0][2]) for _ in range(count)]


def rule(ranks: list[Arguments], reverse: bool) -> Callable[[int, int], bool]:
    last = ranks[0][3].tolist()
    return lambda i, j: last[j] > -1 and (last[i] < last[j] if reverse else last[i] > last[j])


def oracle(ranks: list[Arguments]) -> list[Answer]:
    return [answer(ranks, rule(ranks, ranks[0][5]))] * len(ranks)


def gather(ranks: list[Arguments]) -> list[Answer]:
    return [answer(ranks, lambda i, j: False)] * len(ranks)


def opposite(ranks: list[Arguments]) -> list[Answer]:
    return [answer(ranks, rule(ranks, not ranks[0][5]))] * len(ranks)


def within_ranks(ranks: list[Arguments]) -> list[Answer]:
    right, rank = rule(ranks, ranks[0][5]), owners(ranks)
    return [answer(ranks, lambda i, j: rank[i] == rank[j] and right(i, j))] * len(ranks)


def threshold_half(ranks: list[Arguments]) -> list[Answer]:
    return oracle([(*own[:4], 0.5, *own[5:]) for own in ranks])


WRONG = {
    "only gathered": gather,
    "the other one suppressed": opposite,
    "pairs within a rank only": within_ranks,
    "a threshold of one half": threshold_half,
}
TRIAL = {"objects": 12, "spread": 5, "side": 48}
