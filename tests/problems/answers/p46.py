import torch

from problems.spec import Arguments
from tests.problems.answers.shared import everyone

# One token has few logits.
TRIAL = {"tokens": 4, "hidden": 128, "vocab_per_rank": 512}


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    weight = torch.cat([weight for _, weight, _ in ranks])
    bias = torch.cat([bias for _, _, bias in ranks])
    return everyone(torch.stack([weight @ token + bias for token in ranks[0][0]]), ranks)


def without_bias(ranks: list[Arguments]) -> list[torch.Tensor]:
    return oracle([(hidden, weight, torch.zeros_like(bias)) for hidden, weight, bias in ranks])


def own_bias(ranks: list[Arguments]) -> list[torch.Tensor]:
    return [oracle([(hidden, weight, bias) for hidden, weight, _ in ranks])[0] for _, _, bias in ranks]


def as_gathered(ranks: list[Arguments]) -> list[torch.Tensor]:
    """The parts one after the other in memory, as they arrive, and not side by side."""
    right = oracle(ranks)[0]
    return everyone(torch.cat([part.reshape(-1) for part in right.chunk(len(ranks), 1)]).view_as(right), ranks)


WRONG = {"without bias": without_bias, "the own bias for all": own_bias, "parts not side by side": as_gathered}
