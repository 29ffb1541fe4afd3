from typing import Any

import torch

from problems.spec import Arguments


def answer(outputs: list[torch.Tensor]) -> Any:
    return tuple(outputs), tuple(outputs)


def total(ranks: list[Arguments]) -> list[torch.Tensor]:
    return [torch.stack([own[i] for own in ranks]).sum(0) for i in range(3)]


def oracle(ranks: list[Arguments]) -> list[Any]:
    return [answer(total(ranks)) for _ in ranks]


def mean(ranks: list[Arguments]) -> list[Any]:
    return [answer([grad / len(ranks) for grad in total(ranks)]) for _ in ranks]


def two(ranks: list[Arguments]) -> list[Any]:
    return [answer([*total(ranks)[:2], own[2]]) for own in ranks]


def not_in_place(ranks: list[Arguments]) -> list[Any]:
    return [(tuple(total(ranks)), own[:3]) for own in ranks]


def swapped(ranks: list[Arguments]) -> list[Any]:
    first, second, third = total(ranks)
    return [answer([second, first, third]) for _ in ranks]


WRONG = {"mean": mean, "last one not summed": two, "arguments left alone": not_in_place, "first two swapped": swapped}
TRIAL = {"rank": 8, "width": 1024}
