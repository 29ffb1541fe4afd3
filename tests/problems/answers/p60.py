import torch

from problems.spec import Arguments

TRIAL = {"b": 1, "c": 2, "h": 64, "v": 96}


def back(spectrum: torch.Tensor, ranks: list[Arguments], norm: str = "ortho") -> list[torch.Tensor]:
    fields = torch.fft.irfft2(spectrum, s=ranks[0][1], norm=norm)
    return [part.contiguous() for part in fields.chunk(len(ranks), dim=-1)]


def whole(ranks: list[Arguments]) -> torch.Tensor:
    return torch.cat([x for x, *_ in ranks], dim=-2)


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return back(whole(ranks), ranks)


def swapped(ranks: list[Arguments]) -> list[torch.Tensor]:
    return back(torch.cat([x for x, *_ in ranks[::-1]], dim=-2), ranks)


def last_column_twice(ranks: list[Arguments]) -> list[torch.Tensor]:
    spectrum = whole(ranks).clone()
    spectrum[..., -1] *= 2
    return back(spectrum, ranks)


def half_only(ranks: list[Arguments]) -> list[torch.Tensor]:
    _, v = ranks[0][1]
    fields = torch.fft.ifft2(torch.nn.functional.pad(whole(ranks), (0, v - v // 2 - 1)), norm="ortho").real
    return [part.contiguous() for part in fields.chunk(len(ranks), dim=-1)]


def truncated(ranks: list[Arguments]) -> list[torch.Tensor]:
    """The first length taken for the shard's: rank 0's rows alone."""
    spectrum = whole(ranks).clone()
    spectrum[..., ranks[0][0].shape[-2] :, :] = 0
    return back(spectrum, ranks)


WRONG = {
    "rows in reverse rank order": swapped,
    "last column counted twice": last_column_twice,
    "mirrored half forgotten": half_only,
    "first shard only": truncated,
}
