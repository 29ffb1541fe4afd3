import torch

from problems.spec import Arguments

TRIAL = {"rows_per_pair": 64, "features": 128}


def chunk(own: Arguments, i: int) -> torch.Tensor:
    """What a rank sends to the one at distance i."""
    gradients, counts = own[0], own[3]
    return gradients[sum(counts[:i]) : sum(counts[: i + 1])]


def summed(own: Arguments, arrived: torch.Tensor) -> torch.Tensor:
    """As a product with a one-hot matrix."""
    _, ids, seed_size, *_ = own
    hit = torch.arange(seed_size)[:, None] == ids[None, :]
    return hit.to(arrived.dtype) @ arrived


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    size = len(ranks)
    return [
        summed(ranks[r], torch.cat([chunk(ranks[(r + i) % size], -i % size) for i in range(size)])) for r in range(size)
    ]


def by_rank(ranks: list[Arguments]) -> list[torch.Tensor]:
    """Arriving rows in rank order, ids by distance."""
    size = len(ranks)
    return [summed(ranks[r], torch.cat([chunk(ranks[s], (r - s) % size) for s in range(size)])) for r in range(size)]


def last_wins(ranks: list[Arguments]) -> list[torch.Tensor]:
    """Rows with the same id replace each other instead of being added."""
    size, answers = len(ranks), []
    for r, (gradients, ids, seed_size, *_) in enumerate(ranks):
        arrived = torch.cat([chunk(ranks[(r + i) % size], -i % size) for i in range(size)])
        output = gradients.new_zeros(seed_size, gradients.shape[1])
        for row, value in zip(ids.tolist(), arrived, strict=True):
            output[row] = value
        answers.append(output)
    return answers


def averaged(ranks: list[Arguments]) -> list[torch.Tensor]:
    return [
        output / own[1].bincount(minlength=own[2]).clamp_min(1)[:, None].to(output.dtype)
        for output, own in zip(oracle(ranks), ranks, strict=True)
    ]


WRONG = {"received in rank order": by_rank, "the last of the same id": last_wins, "mean instead of sum": averaged}
