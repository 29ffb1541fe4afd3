import torch

from problems.spec import Arguments

TRIAL = {"keys": 2, "batch": 40, "pooling": 4, "variable": 0}

Answer = dict[str, torch.Tensor]


def segments(own: Arguments) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]]:
    """Of each key: lengths, values, weights."""
    lengths, values, splits, batch, _, weights, strides, _ = own
    strides = strides or [batch] * sum(splits)
    pieces = lengths.split(strides)
    totals = [int(piece.sum()) for piece in pieces]
    weighed = weights.split(totals) if weights is not None else [None] * len(pieces)
    return list(zip(pieces, values.split(totals), weighed, strict=True))


def redistributed(ranks: list[Arguments], staggered: bool = True, source_major: bool = False) -> list[Answer]:
    size = len(ranks)
    _, _, splits, _, _, weights, strides, stagger = ranks[0]
    step = size // stagger
    sources = [x + step * y for x in range(step) for y in range(stagger)] if staggered else list(range(size))
    of = [segments(own) for own in ranks]
    batches = torch.tensor([own[3] for own in ranks])
    answers = []
    for rank in range(size):
        first = sum(splits[:rank])
        keys = range(first, first + splits[rank])
        order = [(s, k) for s in sources for k in keys] if source_major else [(s, k) for k in keys for s in sources]

        def joined(part: int, order=order) -> torch.Tensor:
            like = of[0][0][part][:0]
            return torch.cat([like, *(of[s][k][part] for s, k in order)])

        answer = {"lengths": joined(0), "values": joined(1)}
        if weights is not None:
            answer["weights"] = joined(2)
        if strides is not None:
            table = [[ranks[s][6][k] for s in sources] for k in keys]
            answer["stride_per_key_per_rank"] = torch.tensor(table, dtype=torch.int64).reshape(len(keys), size)
        else:
            answer |= {"stride": batches.sum(), "stride_per_rank": batches}
        answers.append(answer)
    return answers


def oracle(ranks: list[Arguments]) -> list[Answer]:
    return redistributed(ranks)


def source_major(ranks: list[Arguments]) -> list[Answer]:
    return redistributed(ranks, source_major=True)


def own_strides(ranks: list[Arguments]) -> list[Answer]:
    """Every rank taken to have as many samples as this one."""
    answers = oracle(ranks)
    for own, answer in zip(ranks, answers, strict=True):
        answer["stride_per_rank"] = torch.full_like(answer["stride_per_rank"], own[3])
    return answers


def without_weights(ranks: list[Arguments]) -> list[Answer]:
    answers = oracle(ranks)
    for answer in answers:
        answer["weights"] = torch.ones_like(answer["weights"])
    return answers


WRONG = {"source after source": source_major, "the own batch size": own_strides, "weights of one": without_weights}
