import torch

from problems.spec import Arguments

TRIAL = {"m": 32, "n": 1024, "block": 128}  # several blocks in a row
Quantised = tuple[torch.Tensor, torch.Tensor]


def quantised(
    ranks: list[Arguments], block: int | None = None, least: float = 0.0, largest: float = 448.0
) -> Quantised:
    """All ranks' rows, each block rounded to the nearest of E4M3's numbers."""
    x, size = torch.cat([own for own, _ in ranks]), block or ranks[0][1]
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).double()  # those from 0 to 448
    between = (codes[1:] + codes[:-1]) / 2
    blocks = x.double().reshape(-1, size)
    s = blocks.abs().amax(1, keepdim=True).clamp_min(least) / largest
    q = blocks / torch.where(s == 0, 1.0, s)
    y = codes[torch.bucketize(q.abs(), between)] * q.sign()
    return y.reshape(x.shape).to(torch.float8_e4m3fn), s.reshape(len(x), -1)


def oracle(ranks: list[Arguments]) -> list[Quantised]:
    return [quantised(ranks)] * len(ranks)


def row_scale(ranks: list[Arguments]) -> list[Quantised]:
    n, block = ranks[0][0].shape[1], ranks[0][1]
    y, s = quantised(ranks, block=n)
    return [(y, s.expand(-1, n // block).contiguous())] * len(ranks)


def least_scale(ranks: list[Arguments]) -> list[Quantised]:
    return [quantised(ranks, least=1e-2)] * len(ranks)


def scale_of_fnuz(ranks: list[Arguments]) -> list[Quantised]:
    return [quantised(ranks, largest=240.0)] * len(ranks)


def towards_zero(ranks: list[Arguments]) -> list[Quantised]:
    y, s = quantised(ranks)
    x = torch.cat([own for own, _ in ranks]).double().reshape(*s.shape, -1)
    q = (x / torch.where(s == 0, 1.0, s)[..., None]).abs().reshape(y.shape)
    lower = (y.view(torch.uint8) - (y.double().abs() > q).to(torch.uint8)).view(torch.float8_e4m3fn)
    return [(lower, s)] * len(ranks)


def zero_blocks_divided(ranks: list[Arguments]) -> list[Quantised]:
    y, s = quantised(ranks)
    empty = (s == 0).repeat_interleave(y.shape[1] // s.shape[1], dim=1)
    return [(torch.where(empty, float("nan"), y.float()).to(y.dtype), s)] * len(ranks)


def scale_one_for_zeros(ranks: list[Arguments]) -> list[Quantised]:
    y, s = quantised(ranks)
    return [(y, torch.where(s == 0, 1.0, s))] * len(ranks)


WRONG = {
    "one scale for a row": row_scale,
    "a least scale": least_scale,
    "the largest value of float8_e4m3fnuz": scale_of_fnuz,
    "rounded towards zero": towards_zero,
    "0 / 0 in blocks of zeros": zero_blocks_divided,
    "scale 1 for blocks of zeros": scale_one_for_zeros,
}
