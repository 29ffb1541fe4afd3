import torch

from problems.spec import Arguments

Pair = tuple[torch.Tensor, torch.Tensor]


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, sign: int = 1) -> torch.Tensor:
    half, z = x.shape[-1] // 2, torch.empty_like(x)
    for head in range(x.shape[2]):
        for d in range(2 * half):
            other = -x[:, :, head, d + half] if d < half else x[:, :, head, d - half]
            z[:, :, head, d] = x[:, :, head, d] * cos[:, :, d] + sign * other * sin[:, :, d]
    return z


def oracle(ranks: list[Arguments]) -> list[Pair]:
    q, k, cos, sin = (torch.cat(parts, dim=1) for parts in zip(*ranks, strict=True))
    return [(turned(q, cos, sin), turned(k, cos, sin))] * len(ranks)


def backwards(ranks: list[Arguments]) -> list[Pair]:
    q, k, cos, sin = (torch.cat(parts, dim=1) for parts in zip(*ranks, strict=True))
    return [(turned(q, cos, sin, -1), turned(k, cos, sin, -1))] * len(ranks)


def half_of_the_angles(ranks: list[Arguments]) -> list[Pair]:
    half = ranks[0][2].shape[-1] // 2
    return oracle([(q, k, *(t[..., :half].repeat(1, 1, 2) for t in angles)) for q, k, *angles in ranks])


def neighbours(ranks: list[Arguments]) -> list[Pair]:
    def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        pairs = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
        return x * cos[:, :, None] + pairs * sin[:, :, None]

    q, k, cos, sin = (torch.cat(parts, dim=1) for parts in zip(*ranks, strict=True))
    return [(rotate(q, cos, sin), rotate(k, cos, sin))] * len(ranks)


def along_the_batch(ranks: list[Arguments]) -> list[Pair]:
    return [tuple(torch.cat(z.chunk(len(ranks), dim=1)).view_as(z) for z in pair) for pair in oracle(ranks)]


WRONG = {
    "turned the other way": backwards,
    "the first half of cos and sin for both": half_of_the_angles,
    "neighbouring channels paired": neighbours,
    "gathered along the batch": along_the_batch,
}
