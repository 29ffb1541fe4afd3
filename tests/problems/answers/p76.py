import itertools

import torch

from problems.spec import Arguments
from tests.problems.answers.shared import everyone

TRIAL = {"b": 1, "c": 16, "frames": 4, "height": 8, "width": 66}


def correlate(ranks: list[Arguments], flip: bool = False, bias: bool = True) -> torch.Tensor:
    """One tap at a time, all channels at once."""
    x, weight = (torch.cat([own[i] for own in ranks], dim=1).double() for i in range(2))
    _, _, b, stride, padding, dilation = ranks[0]
    k = weight.shape[-1]
    x = torch.nn.functional.pad(x, (padding,) * 6)
    sizes = [(size - dilation * (k - 1) - 1) // stride + 1 for size in x.shape[2:]]
    total = torch.zeros(x.shape[0], weight.shape[0], *sizes, dtype=x.dtype)
    for tap in itertools.product(range(k), repeat=3):
        at = (slice(dilation * t, dilation * t + stride * (n - 1) + 1, stride) for t, n in zip(tap, sizes, strict=True))
        w = weight[(..., *(k - 1 - t for t in tap))] if flip else weight[(..., *tap)]
        total += torch.einsum("oc,bcthw->bothw", w, x[(..., *at)])
    if bias:
        total += b.double()[:, None, None, None]
    return total.to(ranks[0][0].dtype)


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return everyone(correlate(ranks), ranks)


def without_bias(ranks: list[Arguments]) -> list[torch.Tensor]:
    return everyone(correlate(ranks, bias=False), ranks)


def bias_of_every_rank(ranks: list[Arguments]) -> list[torch.Tensor]:
    x, weight, bias, *rest = ranks[0]
    return everyone(correlate([(x, weight, bias * len(ranks), *rest), *ranks[1:]]), ranks)


def flipped(ranks: list[Arguments]) -> list[torch.Tensor]:
    return everyone(correlate(ranks, flip=True), ranks)


def own(ranks: list[Arguments]) -> list[torch.Tensor]:
    return [correlate([arguments] * len(ranks)) for arguments in ranks]


WRONG = {
    "without bias": without_bias,
    "the bias once per rank": bias_of_every_rank,
    "convolution, not correlation": flipped,
    "own product times the number of ranks": own,
}
