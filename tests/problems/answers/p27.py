import torch

from problems.spec import Arguments


def exchanged(ranks: list[Arguments], order: list[int]) -> list[torch.Tensor]:
    pieces = [x.split(sends) for x, sends, _, _ in ranks]
    return [torch.cat([pieces[source][rank] for source in order]) for rank in range(len(ranks))]


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return exchanged(ranks, list(range(len(ranks))))


def backwards(ranks: list[Arguments]) -> list[torch.Tensor]:
    return exchanged(ranks, list(range(len(ranks)))[::-1])


def own_first(ranks: list[Arguments]) -> list[torch.Tensor]:
    """Every sender's block is taken from where the receiver's own begins."""
    found = []
    for rank, (_, sends, receives, _) in enumerate(ranks):
        begin = sum(sends[:rank])
        found.append(torch.cat([x.roll(-begin, 0)[:rows] for (x, *_), rows in zip(ranks, receives, strict=True)]))
    return found


WRONG = {"sources in reverse order": backwards, "one offset for all senders": own_first}
