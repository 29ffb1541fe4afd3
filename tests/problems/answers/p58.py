import torch

from problems.spec import Arguments

TRIAL = {"m": 512, "n": 128}
LOSSY = "one number is the answer, a sum over all pairs, in which the noise of a cheaper format averages out"


def terms(ranks: list[Arguments]) -> list[torch.Tensor]:
    """-log sigmoid of every pair: own images by rows, all ranks' texts by columns."""
    texts = torch.cat([own[1] for own in ranks]).double()
    found = []
    for rank, (images, _, scale, bias) in enumerate(ranks):
        logits = scale * images.double() @ texts.T + bias
        match = torch.zeros_like(logits, dtype=torch.bool)
        for i in range(len(images)):
            match[i, rank * len(images) + i] = True
        found.append(torch.where(match, torch.log1p(torch.exp(-logits)), torch.log1p(torch.exp(logits))))
    return found


def losses(found: list[torch.Tensor]) -> list[torch.Tensor]:
    return [pairs.sum() / len(pairs) for pairs in found]


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return losses(terms(ranks))


def own_texts(ranks: list[Arguments]) -> list[torch.Tensor]:
    return [oracle([own])[0] for own in ranks]


def without_opposite(ranks: list[Arguments]) -> list[torch.Tensor]:
    """Without the last block, that of the rank half way round."""
    count = len(ranks)
    return losses(
        [
            torch.cat([block for s, block in enumerate(pairs.chunk(count, 1)) if s != (rank + count // 2) % count], 1)
            for rank, pairs in enumerate(terms(ranks))
        ]
    )


def mean(ranks: list[Arguments]) -> list[torch.Tensor]:
    whole = sum(oracle(ranks)) / len(ranks)
    return [whole] * len(ranks)


def diagonals(ranks: list[Arguments]) -> list[torch.Tensor]:
    """The diagonal of every block taken for matches."""
    right = []
    for images, _, scale, bias in ranks:
        logits = torch.stack([scale * images.double() @ own[1].double().T + bias for own in ranks])
        sign = 1 - 2 * torch.eye(len(images), dtype=torch.float64)
        right.append(torch.log1p(torch.exp(sign * logits)).sum() / len(images))
    return right


def without_bias(ranks: list[Arguments]) -> list[torch.Tensor]:
    return oracle([(*own[:3], 0.0) for own in ranks])


def positives(ranks: list[Arguments]) -> list[torch.Tensor]:
    """Without the matching pairs."""
    return [right - own for right, own in zip(oracle(ranks), matches(ranks), strict=True)]


def matches(ranks: list[Arguments]) -> list[torch.Tensor]:
    return [
        torch.nn.functional.softplus(-(scale * (images.double() * texts.double()).sum(1) + bias)).mean()
        for images, texts, scale, bias in ranks
    ]


WRONG = {
    "own texts only": own_texts,
    "without the opposite rank's texts": without_opposite,
    "mean over ranks": mean,
    "matches on all ranks": diagonals,
    "without bias": without_bias,
    "without matches": positives,
}
