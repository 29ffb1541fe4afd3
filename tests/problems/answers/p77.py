import torch

from problems.spec import Arguments


def whole(parts: list[torch.Tensor], ranges: int) -> list[torch.Tensor]:
    """Every range's tokens."""
    return [torch.cat(own) for own in zip(*(part.chunk(ranges) for part in parts), strict=True)]


def attention(
    ranks: list[Arguments], clip: int | None, bounds: list[list[int]], scale: float | None = None
) -> list[torch.Tensor]:
    ranges, wide = ranks[0][3], torch.promote_types(ranks[0][0].dtype, torch.float32)
    queries = whole([own[0].to(wide) for own in ranks], ranges)
    listed = torch.cat([own[:clip] for own in whole([own[1].to(wide) for own in ranks], ranges)])
    heads = torch.arange(queries[0].shape[1]) // (queries[0].shape[1] // listed.shape[1])
    keys, values = listed[:, heads].chunk(2, dim=-1)
    outputs = []
    for query, (first, last) in zip(queries, bounds, strict=True):
        scores = torch.einsum("qhd,khd->hqk", query, keys[first:last]) * (scale or query.shape[-1] ** -0.5)
        outputs.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), values[first:last]).chunk(len(ranks)))
    return [torch.cat(own) for own in zip(*outputs, strict=True)]


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return attention(ranks, ranks[0][4], ranks[0][2].tolist())


def own_ranges(ranks: list[Arguments]) -> list[torch.Tensor]:
    chunk = ranks[0][4]
    return attention(ranks, chunk, [[i * chunk, (i + 1) * chunk] for i in range(ranks[0][3])])


def with_filling(ranks: list[Arguments]) -> list[torch.Tensor]:
    """Bounds counted in ranges that are not clipped."""
    length = len(ranks[0][0]) // ranks[0][3] * len(ranks)
    shift = length - ranks[0][4]
    bounds = [[x + x // ranks[0][4] * shift for x in pair] for pair in ranks[0][2].tolist()]
    return attention(ranks, None, bounds)


def one_key_missed(ranks: list[Arguments]) -> list[torch.Tensor]:
    return attention(ranks, ranks[0][4], [[first + 1, last] for first, last in ranks[0][2].tolist()])


def own_tokens(ranks: list[Arguments]) -> list[torch.Tensor]:
    """Every token's attention, ranks' parts in the wrong order."""
    return oracle(ranks)[::-1]


WRONG = {
    "each range sees itself": own_ranges,
    "filling among the keys": with_filling,
    "first key missed": one_key_missed,
    "tokens of other ranks": own_tokens,
}
TRIAL = {"ranges": 3, "chunk": 101, "heads": 8, "key_heads": 4, "dim": 32}
