import torch

from problems.spec import Arguments
from tests.problems.answers.p52 import history_of, image

TRIAL = {"p": 4096}
Answer = list[tuple[torch.Tensor, torch.Tensor]]


def gathered(images: list[torch.Tensor], ranks: list[Arguments]) -> Answer:
    return [(torch.cat(images), history_of(*own)) for own in ranks]


def oracle(ranks: list[Arguments]) -> Answer:
    return gathered([image(x, float(history_of(x, history).max())) for x, history in ranks], ranks)


def unrounded(ranks: list[Arguments]) -> Answer:
    return gathered([x.double() for x, _ in ranks], ranks)


def before_the_shift(ranks: list[Arguments]) -> Answer:
    return gathered([image(x, float(history.max())) for x, history in ranks], ranks)


def present_only(ranks: list[Arguments]) -> Answer:
    return gathered([image(x, float(x.abs().max())) for x, _ in ranks], ranks)


def own_scale_for_all(ranks: list[Arguments]) -> Answer:
    peaks = [float(history_of(*own).max()) for own in ranks]
    return [
        (torch.cat([image(x, peak) for x, _ in ranks]), history_of(*own))
        for own, peak in zip(ranks, peaks, strict=True)
    ]


def history_of_rank_0(ranks: list[Arguments]) -> Answer:
    return [(full, history_of(*ranks[0])) for full, _ in oracle(ranks)]


WRONG = {
    "not rounded": unrounded,
    "scale of the old history": before_the_shift,
    "scale of the present shard alone": present_only,
    "the own scale for all shards": own_scale_for_all,
    "rank 0's history": history_of_rank_0,
}
NEEDLESS = {"fp8 on the wire": "it is float8 already: in one case of eight the other scale differs by a power of two"}
