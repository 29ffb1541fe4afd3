import torch

from problems.spec import Arguments

# The largest tensors are (block, block).
TRIAL = {"blocks": 3, "block": 96}
Answer = list[tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor]]


def total(ranks: list[Arguments]) -> float:
    """By loops over the elements' products, not matrix by vector."""
    return sum(
        own[4] + float((p * torch.outer(h.flatten(), h.flatten())).sum())
        for own in ranks
        for h, p in zip(own[0], own[3], strict=True)
    )


def updated(ranks: list[Arguments], sums: list[float], errors: list[torch.Tensor]) -> Answer:
    weights, covariances = [], []
    for (H, _, old, P, forget, _), s, error in zip(ranks, sums, errors, strict=True):
        gains = [(p * h.flatten()).sum(1, keepdim=True) for h, p in zip(H, P, strict=True)]
        weights += [w + error * k / s for w, k in zip(old, gains, strict=True)]
        covariances.append(
            [(p - torch.outer(k.flatten(), k.flatten()) / s) / forget for p, k in zip(P, gains, strict=True)]
        )
    forget, nue = ranks[0][4:]
    return [(weights, own, torch.tensor(nue * forget + 1 - nue, dtype=torch.float64)) for own in covariances]


def oracle(ranks: list[Arguments]) -> Answer:
    return updated(ranks, [total(ranks)] * len(ranks), [own[1] for own in ranks])


def own_sum(ranks: list[Arguments]) -> Answer:
    return updated(ranks, [total([own]) for own in ranks], [own[1] for own in ranks])


def lambda_once(ranks: list[Arguments]) -> Answer:
    extra = sum(own[4] * len(own[0]) for own in ranks) - ranks[0][4]
    return updated(ranks, [total(ranks) - extra] * len(ranks), [own[1] for own in ranks])


def mean_error(ranks: list[Arguments]) -> Answer:
    mean = torch.stack([own[1] for own in ranks]).mean()
    return updated(ranks, [total(ranks)] * len(ranks), [mean] * len(ranks))


def old_weights(ranks: list[Arguments]) -> Answer:
    return [([w for own in ranks for w in own[2]], P, forget) for _, P, forget in oracle(ranks)]


def old_covariances(ranks: list[Arguments]) -> Answer:
    return [(w, [p / own[4] for p in own[3]], forget) for (w, _, forget), own in zip(oracle(ranks), ranks, strict=True)]


def same_lambda(ranks: list[Arguments]) -> Answer:
    return [(w, P, torch.full_like(forget, ranks[0][4])) for w, P, forget in oracle(ranks)]


WRONG = {
    "each rank's own sum": own_sum,
    "lambda added once": lambda_once,
    "the mean error": mean_error,
    "weights as they were": old_weights,
    "covariances only divided": old_covariances,
    "lambda as it was": same_lambda,
}
