from typing import Any

import torch

from problems.spec import Arguments


def terms(own: Arguments) -> dict[str, torch.Tensor]:
    hidden, weight, labels, old, advantages, ignored = own
    wide = torch.promote_types(hidden.dtype, torch.float32)
    logits = (hidden @ weight.T).to(wide)
    valid = labels != ignored
    probability = (logits.exp() / logits.exp().sum(1, keepdim=True)).gather(1, labels.clamp_min(0)[:, None]).squeeze(1)
    log_probability = probability.log() * valid
    delta = (log_probability - old.to(wide)) * valid
    return {
        "log": log_probability,
        "delta": delta,
        "ratio": delta.exp(),
        "gradient": -delta.exp() * advantages.to(wide) * valid,
        "valid": valid,
    }


def metrics(parts: list[dict[str, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, and the five metrics, over these ranks' tokens."""
    valid = torch.cat([part["valid"] for part in parts])
    log, delta, ratio, gradient = (
        torch.cat([part[name] for part in parts])[valid] for name in ("log", "delta", "ratio", "gradient")
    )
    if len(ratio) == 0:
        return torch.tensor(0.0), torch.zeros(5)
    means = (ratio - delta - 1).mean(), -log.mean()
    return gradient.mean(), torch.stack([ratio.mean(), ratio.min(), ratio.max(), *means])


def oracle(ranks: list[Arguments]) -> list[Any]:
    parts = [terms(own) for own in ranks]
    loss, figures = metrics(parts)
    return [(loss, None, part["log"], part["gradient"], figures) for part in parts]


def locally(ranks: list[Arguments]) -> list[Any]:
    parts = [terms(own) for own in ranks]
    own = [metrics([part]) for part in parts]
    return [(loss, None, part["log"], part["gradient"], m) for (loss, m), part in zip(own, parts, strict=True)]


def mean_of_means(ranks: list[Arguments]) -> list[Any]:
    """Each rank's means count alike, whatever its number of tokens."""
    own = [metrics([terms(arguments)]) for arguments in ranks]
    loss = torch.stack([loss for loss, _ in own]).mean()
    figures = torch.stack([m for _, m in own])
    return [
        (loss, None, log, gradient, torch.cat([figures.mean(0)[:1], right[1:3], figures.mean(0)[3:]]))
        for _, _, log, gradient, right in oracle(ranks)
    ]


def ignored_counted(ranks: list[Arguments]) -> list[Any]:
    """In the number of tokens, and with ratio 1."""
    share = sum(int((own[2] != own[5]).sum()) for own in ranks) / sum(len(own[2]) for own in ranks)
    return [
        (loss * share, None, log, gradient, torch.stack([m[0] * share, m[1], m[2], m[3] * share, m[4] * share]))
        for loss, _, log, gradient, m in oracle(ranks)
    ]


def no_ratio(ranks: list[Arguments]) -> list[Any]:
    return [
        (loss, None, log, -own[4] * (own[2] != own[5]), m)
        for (loss, _, log, _, m), own in zip(oracle(ranks), ranks, strict=True)
    ]


WRONG = {
    "own tokens only": locally,
    "mean of the ranks' means": mean_of_means,
    "ignored tokens counted": ignored_counted,
    "terms without the ratio": no_ratio,
}
NEEDLESS = {
    name: "five sums over tokens whose logits are rounded to bfloat16 are hardly surer than eight bits"
    for name in ("int8 on the wire, a scale per row", "int8 on the wire, a scale per 32 values", "fp8 on the wire")
}
TRIAL = {"tokens": 2048, "width": 64, "vocabulary": 500}
