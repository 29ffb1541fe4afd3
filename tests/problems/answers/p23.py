from typing import Any

import torch

from problems.spec import Arguments

NONFINITE = {0: "the mean loss over no tokens is NaN, and must count as 0"}


def oracle(ranks: list[Arguments]) -> list[Any]:
    total = 0
    for loss, tokens, *_ in ranks:
        total = total + torch.where(tokens > 0, loss * tokens, 0.0)
    return [
        (total / number, total, (upstream / number + upstream_sum) * tokens)
        for _, tokens, number, upstream, upstream_sum in ranks
    ]


def plain_mean(ranks: list[Arguments]) -> list[Any]:
    mean = sum(own[0].nan_to_num(0.0) for own in ranks) / len(ranks)
    return [(mean, total, grad) for _, total, grad in oracle(ranks)]


def nan_kept(ranks: list[Arguments]) -> list[Any]:
    total = sum(own[0] * own[1] for own in ranks)
    return [(total / own[2], total, grad) for own, (_, _, grad) in zip(ranks, oracle(ranks), strict=True)]


def one_gradient(ranks: list[Arguments]) -> list[Any]:
    return [(mean, total, own[3] / own[2] * own[1]) for own, (mean, total, _) in zip(ranks, oracle(ranks), strict=True)]


def average_gradient(ranks: list[Arguments]) -> list[Any]:
    answers = oracle(ranks)
    grad = sum(grad for _, _, grad in answers)
    return [(mean, total, grad) for mean, total, _ in answers]


WRONG = {
    "plain mean over ranks": plain_mean,
    "NaN of ranks without tokens kept": nan_kept,
    "gradient of the sum left out": one_gradient,
    "gradients added over ranks": average_gradient,
}
TRIAL = {"sequences": 2048, "tokens": 2048}
