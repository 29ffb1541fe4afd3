import torch
from torch.nn import functional

from problems.spec import Arguments

TRIAL = {"b": 1, "c": 64, "h": 3, "w": 128, "k": 3, "stride": 1, "padding": 1}


def of_strip(ranks: list[Arguments], strip: torch.Tensor) -> list[torch.Tensor]:
    """`strip`: the whole image with its padding. Each rank's part of it alone."""
    height, answers = ranks[0][0].shape[2], []
    for rank, (_, weight, bias, stride, padding) in enumerate(ranks):
        rows = strip[:, :, rank * height : (rank + 1) * height + 2 * padding]
        patches = functional.unfold(rows, weight.shape[-2:], stride=stride)
        width = (rows.shape[3] - weight.shape[3]) // stride + 1
        y = weight.flatten(1) @ patches + bias[:, None]
        answers.append(y.unflatten(2, (-1, width)))
    return answers


def padded(image: torch.Tensor, padding: int) -> torch.Tensor:
    return functional.pad(image, (padding,) * 4)


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return of_strip(ranks, padded(torch.cat([x for x, *_ in ranks], dim=2), ranks[0][4]))


def no_halo(ranks: list[Arguments]) -> list[torch.Tensor]:
    return [functional.conv2d(*own) for own in ranks]


def without_bias(ranks: list[Arguments]) -> list[torch.Tensor]:
    return oracle([(x, weight, torch.zeros_like(bias), *rest) for x, weight, bias, *rest in ranks])


def ring(ranks: list[Arguments]) -> list[torch.Tensor]:
    """The first and the last rank taken for neighbours."""
    padding, image = ranks[0][4], torch.cat([x for x, *_ in ranks], dim=2)
    strip = torch.cat([image[:, :, -padding:], image, image[:, :, :padding]], dim=2)
    return of_strip(ranks, functional.pad(strip, (padding, padding)))


def first_weight(ranks: list[Arguments]) -> list[torch.Tensor]:
    return oracle([(x, ranks[0][1], *rest) for x, _, *rest in ranks])


WRONG = {
    "zeros for halos": no_halo,
    "without bias": without_bias,
    "ends joined to a ring": ring,
    "rank 0's weight": first_weight,
}
