import math

import torch

from problems.spec import Arguments

TRIAL = {"m": 512, "d_in": 64, "h": 128, "d_out": 64}
Answer = list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


def gradient(ranks: list[Arguments], flat: torch.Tensor, bias: bool = True) -> torch.Tensor:
    """Of the mean over the whole batch, by autograd."""
    X, y = torch.cat([own[0] for own in ranks]), torch.cat([own[1] for own in ranks])
    with torch.enable_grad():
        leaf = flat.clone().requires_grad_()
        parts, at = [], 0
        for shape in ranks[0][3]:
            parts.append(leaf[at : at + math.prod(shape)].reshape(shape))
            at += math.prod(shape)
        W1, b1, W2, b2 = parts
        hidden = torch.nn.functional.relu(X @ W1.T + (b1 if bias else 0))
        loss = ((hidden @ W2.T + (b2 if bias else 0) - y) ** 2).mean()
        return torch.autograd.grad(loss, leaf)[0]


def stepped(
    ranks: list[Arguments], g: torch.Tensor, correct: bool = True, old_decay: bool = True, **changes: float
) -> Answer:
    flat, first, second = (torch.cat([own[i] for own in ranks]) for i in (2, 4, 5))
    names = ("lr", "beta1", "beta2", "eps", "decay", "step")
    s = dict(zip(names, ranks[0][6:], strict=True)) | changes
    first = s["beta1"] * first + (1 - s["beta1"]) * g
    second = s["beta2"] * second + (1 - s["beta2"]) * g**2
    c1, c2 = (1 - s["beta1"] ** s["step"], 1 - s["beta2"] ** s["step"]) if correct else (1, 1)
    moved = s["lr"] * (first / c1) / (torch.sqrt(second / c2) + s["eps"])
    new = flat - moved - s["lr"] * s["decay"] * (flat if old_decay else flat - moved)
    return list(zip(*(whole.chunk(len(ranks)) for whole in (new, first, second)), strict=True))


def whole(ranks: list[Arguments]) -> torch.Tensor:
    return torch.cat([own[2] for own in ranks])


def oracle(ranks: list[Arguments]) -> Answer:
    return stepped(ranks, gradient(ranks, whole(ranks)))


def wide(ranks: list[Arguments]) -> list[Arguments]:
    """In float64: these answers are wrong, not inexact."""
    return [tuple(x.double() if isinstance(x, torch.Tensor) else x for x in own) for own in ranks]


def own_batch(ranks: list[Arguments]) -> Answer:
    ranks = wide(ranks)
    return [stepped(ranks, gradient([own], whole(ranks)))[rank] for rank, own in enumerate(ranks)]


def no_bias(ranks: list[Arguments]) -> Answer:
    ranks = wide(ranks)
    return stepped(ranks, gradient(ranks, whole(ranks), bias=False))


def summed(ranks: list[Arguments]) -> Answer:
    ranks = wide(ranks)
    return stepped(ranks, len(ranks) * gradient(ranks, whole(ranks)))


def with_changes(**changes):
    def wrong(ranks: list[Arguments]) -> Answer:
        ranks = wide(ranks)
        return stepped(ranks, gradient(ranks, whole(ranks)), **changes)

    return wrong


def unchanged(ranks: list[Arguments]) -> Answer:
    return [(own[2], own[4], own[5]) for own in ranks]


def fresh_moments(ranks: list[Arguments]) -> Answer:
    ranks = [(*own[:4], own[4] * 0, own[5] * 0, *own[6:]) for own in wide(ranks)]
    return stepped(ranks, gradient(ranks, whole(ranks)))


WRONG = {
    "no step": unchanged,
    "gradient of the own batch": own_batch,
    "without biases": no_bias,
    "gradients not divided": summed,
    "without decay": with_changes(decay=0.0),
    "decay of the new parameters": with_changes(old_decay=False),
    "without correction": with_changes(correct=False),
    "without epsilon": with_changes(eps=0.0),
    "moments from zero": fresh_moments,
}
