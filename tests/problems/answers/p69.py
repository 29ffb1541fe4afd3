import torch

from problems.spec import Arguments
from tests.problems.answers.shared import everyone

# Ranks among 100 negatives fill a row with some thousand answers.
TRIAL = {"positives": 1000, "negatives": 100}


def ranked(ranks: list[Arguments], counted) -> list[torch.Tensor]:
    """`counted(positive, negative)`: which negatives come before."""
    places = [1 + counted(positive[:, None], negative).sum(1) for positive, negative, _ in ranks]
    return everyone(torch.cat(places), ranks)


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return ranked(ranks, lambda positive, negative: negative > positive)


def ties_before(ranks: list[Arguments]) -> list[torch.Tensor]:
    return ranked(ranks, lambda positive, negative: negative >= positive)


def ascending(ranks: list[Arguments]) -> list[torch.Tensor]:
    return ranked(ranks, lambda positive, negative: negative < positive)


def from_zero(ranks: list[Arguments]) -> list[torch.Tensor]:
    return [places - 1 for places in oracle(ranks)]


def own_first(ranks: list[Arguments]) -> list[torch.Tensor]:
    """Each rank's own in front."""
    return [oracle(ranks[rank:] + ranks[:rank])[0] for rank in range(len(ranks))]


WRONG = {
    "equal negatives before the positive": ties_before,
    "ascending": ascending,
    "counted from zero": from_zero,
    "own ranks in front": own_first,
}
