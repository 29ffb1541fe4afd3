import torch

from problems.spec import Arguments
from tests.problems.answers.shared import everyone

TRIAL = {"m": 128, "n": 1024}  # outputs are vectors: enough elements to speak of averages
Gradients = tuple[torch.Tensor, torch.Tensor]


def gradients(x: torch.Tensor, dy: torch.Tensor) -> Gradients:
    return torch.einsum("ij,ij->j", x, dy), torch.einsum("ij->j", dy)


def oracle(ranks: list[Arguments]) -> list[Gradients]:
    return everyone(gradients(torch.cat([x for x, _ in ranks]), torch.cat([dy for _, dy in ranks])), ranks)


def swapped(ranks: list[Arguments]) -> list[Gradients]:
    return [(d_beta, d_gamma) for d_gamma, d_beta in oracle(ranks)]


def own(ranks: list[Arguments]) -> list[Gradients]:
    return [tuple(g * len(ranks) for g in gradients(*rank)) for rank in ranks]


def averaged(ranks: list[Arguments]) -> list[Gradients]:
    return [(d_gamma / len(ranks), d_beta / len(ranks)) for d_gamma, d_beta in oracle(ranks)]


def second_not_reduced(ranks: list[Arguments]) -> list[Gradients]:
    return [(total[0], gradients(*rank)[1]) for total, rank in zip(oracle(ranks), ranks, strict=True)]


WRONG = {
    "shift before scale": swapped,
    "own gradients times the number of ranks": own,
    "averaged over ranks": averaged,
    "the shift's gradient of the own rows only": second_not_reduced,
}
