import torch

from problems.spec import Arguments

TRIAL = {"b": 2, "h": 64, "v": 96}


def whole(ranks: list[Arguments]) -> torch.Tensor:
    return torch.cat([x for x, *_ in ranks], dim=2)


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return list(torch.fft.rfft2(whole(ranks), norm="ortho").chunk(len(ranks), dim=1))


def swapped(ranks: list[Arguments]) -> list[torch.Tensor]:
    return list(torch.fft.rfft2(torch.cat([x for x, *_ in ranks[::-1]], dim=2), norm="ortho").chunk(len(ranks), dim=1))


def unscaled(ranks: list[Arguments]) -> list[torch.Tensor]:
    return list(torch.fft.rfft2(whole(ranks)).chunk(len(ranks), dim=1))


def conjugate(ranks: list[Arguments]) -> list[torch.Tensor]:
    return [spectrum.conj().resolve_conj() for spectrum in oracle(ranks)]


def real(ranks: list[Arguments]) -> list[torch.Tensor]:
    return [torch.complex(spectrum.real, torch.zeros_like(spectrum.real)) for spectrum in oracle(ranks)]


WRONG = {
    "columns in reverse rank order": swapped,
    "not normalised": unscaled,
    "conjugate": conjugate,
    "real part only": real,
}
