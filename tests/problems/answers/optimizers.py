"""What the oracles of optimiser steps are made of."""

from collections.abc import Callable

import torch

from problems.spec import Arguments

Tensors = list[torch.Tensor]


def gradients(own: Arguments, weights: Tensors) -> Tensors:
    """By automatic differentiation of the loss over this rank's rows."""
    with torch.enable_grad():
        w1, b1, w2, b2 = leaves = [weight.clone().requires_grad_() for weight in weights]
        output = torch.relu(own[0] @ w1.T + b1) @ w2.T + b2
        return list(torch.autograd.grad((output - own[1]).square().mean(), leaves))


def mean_gradients(ranks: list[Arguments], weights: Tensors) -> Tensors:
    each = [gradients(own, weights) for own in ranks]
    return [torch.stack(parts).mean(0) for parts in zip(*each, strict=True)]


def adam(w: torch.Tensor, m: torch.Tensor, v: torch.Tensor, g: torch.Tensor, *hyper: float) -> Tensors:
    """Updated parameter, first and second moment."""
    lr, beta1, beta2, eps, step = hyper
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    corrected = m / (1 - beta1**step), v / (1 - beta2**step)
    return [w - lr * corrected[0] / (corrected[1].sqrt() + eps), m, v]


def uncorrected(w: torch.Tensor, m: torch.Tensor, v: torch.Tensor, g: torch.Tensor, *hyper: float) -> Tensors:
    lr, beta1, beta2, eps, _ = hyper
    return adam(w, m, v, g, lr, beta1, beta2, eps, 10**9)


def without_epsilon(w: torch.Tensor, m: torch.Tensor, v: torch.Tensor, g: torch.Tensor, *hyper: float) -> Tensors:
    lr, beta1, beta2, _, step = hyper
    return adam(w, m, v, g, lr, beta1, beta2, 0.0, step)


def not_moved(w: torch.Tensor, m: torch.Tensor, v: torch.Tensor, g: torch.Tensor, *hyper: float) -> Tensors:
    return [w, *adam(w, m, v, g, *hyper)[1:]]


def moments_kept(w: torch.Tensor, m: torch.Tensor, v: torch.Tensor, g: torch.Tensor, *hyper: float) -> Tensors:
    return [adam(w, m, v, g, *hyper)[0], m, v]


def moments_from_zero(w: torch.Tensor, m: torch.Tensor, v: torch.Tensor, g: torch.Tensor, *hyper: float) -> Tensors:
    return adam(w, torch.zeros_like(m), torch.zeros_like(v), g, *hyper)


def gradient_added(w: torch.Tensor, m: torch.Tensor, v: torch.Tensor, g: torch.Tensor, *hyper: float) -> Tensors:
    return [w - hyper[0] * g, *adam(w, m, v, g, *hyper)[1:]]


Rule = Callable[..., Tensors]
RULES: dict[str, Rule] = {
    "parameters as they were": not_moved,
    "moments as they were": moments_kept,
    "moments begin at zero": moments_from_zero,
    "no bias correction": uncorrected,
    "no epsilon": without_epsilon,
    "plain gradient descent": gradient_added,
}


def sharded(ranks: list[Arguments], rule: Rule = adam, average: Callable[..., Tensors] = mean_gradients) -> list:
    """ZeRO stages 1 and 2: everybody's moments in one piece, one update, cut again."""
    weights, hyper = list(ranks[0][2:6]), ranks[0][8:]
    flat, grad = (torch.cat([t.flatten() for t in parts]) for parts in (weights, average(ranks, weights)))
    w, m, v = rule(flat, *(torch.cat([own[i] for own in ranks]) for i in (6, 7)), grad, *hyper)
    whole = [part.reshape(t.shape) for part, t in zip(w.split([t.numel() for t in weights]), weights, strict=True)]
    parts = zip(m.chunk(len(ranks)), v.chunk(len(ranks)), strict=True)
    return [(*whole, first, second) for first, second in parts]


def first_rank(ranks: list[Arguments], weights: Tensors) -> Tensors:
    """Rank 0's gradients alone."""
    return gradients(ranks[0], weights)


def summed(ranks: list[Arguments], weights: Tensors) -> Tensors:
    return [grad * len(ranks) for grad in mean_gradients(ranks, weights)]


def no_relu(ranks: list[Arguments], weights: Tensors) -> Tensors:
    """The backward pass forgets the ReLU's mask."""
    found = mean_gradients(ranks, weights)
    w1, b1, w2, b2 = weights
    first = []
    for x, y, *_ in ranks:
        error = 2 / y.numel() * (torch.relu(x @ w1.T + b1) @ w2.T + b2 - y)
        first.append((error @ w2).T @ x)
    return [torch.stack(first).mean(0), *found[1:]]


AVERAGES = {"gradients of rank 0": first_rank, "gradients summed": summed, "ReLU's mask forgotten": no_relu}
