from collections.abc import Callable

import torch

from problems.spec import Arguments

TRIAL = {"b": 1, "s": 64, "groups": 16, "group_dim": 2, "taps": 96}


def chunks(rank: int, size: int, zigzag: bool) -> tuple[int, int]:
    return (rank, 2 * size - 1 - rank) if zigzag else (2 * rank, 2 * rank + 1)


def natural(parts: list[torch.Tensor], zigzag: bool) -> torch.Tensor:
    found = {}
    for rank, part in enumerate(parts):
        found.update(zip(chunks(rank, len(parts), zigzag), part.chunk(2, dim=-1), strict=True))
    return torch.cat([found[i] for i in range(2 * len(parts))], dim=-1)


def long_convolution(ranks: list[Arguments], filters: Callable = lambda h: h, bias: float = 1.0) -> list[torch.Tensor]:
    """Each channel's sequence times a triangular Toeplitz matrix."""
    *_, h, conv_bias, _, group_dim, _, zigzag = ranks[0]
    x1, x2, v = (natural([own[i] for own in ranks], zigzag) for i in range(3))
    positions = x1.shape[-1]
    taps = torch.nn.functional.pad(filters(h), (0, max(0, 2 * positions - h.shape[1])))[:, : 2 * positions].double()
    lag = torch.arange(positions)[:, None] - torch.arange(positions)
    z = (x2 * v).double()
    y = torch.stack(
        [
            z[:, c] @ torch.where(lag >= 0, taps[c // group_dim][lag.clamp_min(0)], 0).T + bias * conv_bias[c] * z[:, c]
            for c in range(x1.shape[1])
        ],
        dim=1,
    )
    out = (x1 * y.to(x1.dtype)).chunk(2 * len(ranks), dim=-1)
    return [
        torch.cat([out[i] for i in chunks(rank, len(ranks), zigzag)], dim=-1).transpose(1, 2).contiguous()
        for rank in range(len(ranks))
    ]


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return long_convolution(ranks)


def without_bias(ranks: list[Arguments]) -> list[torch.Tensor]:
    return long_convolution(ranks, bias=0)


def short(ranks: list[Arguments]) -> list[torch.Tensor]:
    """Taps that reach no further than a rank's positions."""
    near = torch.arange(ranks[0][3].shape[1]) < ranks[0][0].shape[-1] // 2
    return long_convolution(ranks, lambda h: h * near)


def other_order(ranks: list[Arguments]) -> list[torch.Tensor]:
    return long_convolution([(*own[:8], not own[8]) for own in ranks])


def next_filter(ranks: list[Arguments]) -> list[torch.Tensor]:
    return long_convolution(ranks, lambda h: h.roll(1, 0))


def ungated(ranks: list[Arguments]) -> list[torch.Tensor]:
    return long_convolution([(torch.ones_like(own[0]), *own[1:]) for own in ranks])


WRONG = {
    "without bias": without_bias,
    "only near taps": short,
    "zigzag the other way": other_order,
    "another group's filter": next_filter,
    "without the outer gate": ungated,
}
