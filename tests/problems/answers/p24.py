import torch

from problems.spec import Arguments
from tests.problems.answers.p21 import NEEDLESS  # noqa: F401
from tests.problems.answers.shared import everyone


def local(own: Arguments, *, masked: bool = True, weighted: bool = True) -> torch.Tensor:
    layers, experts, top_k, mask = own
    chosen, probability = layers[0].new_zeros(2, experts)
    tokens = 0
    for logits in layers:
        for token, counts in zip(logits, mask.flatten().tolist(), strict=True):
            if not masked or counts:
                tokens += 1
                chosen[token.argsort(descending=True)[:top_k]] += 1
                probability += token.exp() / token.exp().sum() if weighted else 1 / experts
    return experts * (chosen / tokens * probability / tokens).sum()


def average(ranks: list[Arguments], **how: bool) -> torch.Tensor:
    return torch.stack([local(own, **how) for own in ranks]).mean()


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return everyone(average(ranks), ranks)


def unmasked(ranks: list[Arguments]) -> list[torch.Tensor]:
    return everyone(average(ranks, masked=False), ranks)


def even(ranks: list[Arguments]) -> list[torch.Tensor]:
    return everyone(average(ranks, weighted=False), ranks)


def one_layer(ranks: list[Arguments]) -> list[torch.Tensor]:
    return everyone(average([(own[0][:1], *own[1:]) for own in ranks]), ranks)


def all_tokens_alike(ranks: list[Arguments]) -> list[torch.Tensor]:
    """Shares and means over all ranks' tokens, instead of losses over ranks."""
    layers = [torch.cat(own[0]) for own in ranks]
    mask = torch.cat([own[3].flatten().repeat(len(own[0])) for own in ranks])
    return everyone(local(((torch.cat(layers),), *ranks[0][1:3], mask)), ranks)


WRONG = {
    "mask ignored": unmasked,
    "probabilities taken as equal": even,
    "first layer only": one_layer,
    "one loss over all tokens": all_tokens_alike,
}
TRIAL = {"layers": 3, "batch": 8, "sequence": 32, "experts": 8, "top_k": 2}
