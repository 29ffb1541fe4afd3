import torch

from problems.spec import Arguments
from tests.problems.answers.shared import everyone


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    whole, target = torch.cat([own[0] for own in ranks], dim=-1), ranks[0][1]
    losses = torch.nn.functional.cross_entropy(whole.flatten(0, 1), target.flatten(), reduction="none")
    return everyone(losses.view(target.shape), ranks)


def _parts(ranks: list[Arguments]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.cat([own[0] for own in ranks], dim=-1).float(), ranks[0][1].unsqueeze(-1)


def without_maximum(ranks: list[Arguments]) -> list[torch.Tensor]:
    whole, target = _parts(ranks)
    return everyone(whole.exp().sum(-1).log() - whole.gather(-1, target).squeeze(-1), ranks)


def own_sums(ranks: list[Arguments]) -> list[torch.Tensor]:
    whole, target = _parts(ranks)
    right = whole.gather(-1, target).squeeze(-1)
    return [own[0].float().logsumexp(-1) - right for own in ranks]


def first_columns_missed(ranks: list[Arguments]) -> list[torch.Tensor]:
    whole, target = _parts(ranks)
    shifted = whole - whole.amax(-1, keepdim=True)
    right = shifted.gather(-1, target).masked_fill(target % ranks[0][0].shape[-1] == 0, 0.0).squeeze(-1)
    return everyone(shifted.logsumexp(-1) - right, ranks)


WRONG = {
    "without subtracting the maximum": without_maximum,
    "each rank's own sum": own_sums,
    "targets in the first column of a shard missed": first_columns_missed,
}
TRIAL = {"batch": 8, "tokens": 512, "vocabulary": 512}
