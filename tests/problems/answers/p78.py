import math
from collections.abc import Callable

import torch

from problems.spec import Arguments
from tests.problems.answers.shared import everyone

TRIAL = {
    "c": 5, "frames": 6, "height": 14, "width": 13, "tile_frames": 4, "tile": 8,
    "time_percent": 25, "space_percent": 25, "up_time": 2, "up_space": 3,
}  # fmt: skip


def interpolation(size: int, scale: int) -> torch.Tensor:
    """The matrix of one axis: a new pixel's centre lies between two old ones."""
    matrix = torch.zeros(size * scale, size, dtype=torch.float64)
    for i in range(size * scale):
        at = max((i + 0.5) / scale - 0.5, 0)
        low = int(at)
        matrix[i, low] += 1 - (at - low)
        matrix[i, min(low + 1, size - 1)] += at - low
    return matrix


def picture(
    ranks: list[Arguments],
    of: Callable[[int, int], int] = lambda j, size: j % size,
    by_size: bool = True,
    ramp: Callable[[int, int], float] = lambda i, e: i / e,
    axes: tuple[int, ...] = (0, 1, 2),
    as_decoded: bool = True,
) -> torch.Tensor:
    z, length, height, width, spatial, temporal, space, time, sr, first = ranks[0]
    tile, overlap = (length + first, height, width), (temporal, spatial, spatial)
    scale = (time, space * sr, space * sr)
    sizes, stride = z.shape[2:], [math.floor(tile[a] * (1 - overlap[a])) for a in range(3)]
    mix = [math.floor(tile[a] * scale[a] * overlap[a]) for a in range(3)]
    keep = [tile[a] * scale[a] - mix[a] for a in range(3)]
    count = [math.ceil(sizes[a] / stride[a]) for a in range(3)]

    numbered = [(t, h, w) for t in range(count[0]) for h in range(count[1]) for w in range(count[2])]
    extent = {n: [min(tile[a], sizes[a] - n[a] * stride[a]) for a in range(3)] for n in numbered}
    if by_size:
        by_number = sorted(range(len(numbered)), key=lambda j: (-math.prod(extent[numbered[j]]), j))
        numbered = [numbered[j] for j in by_number]
    decoded = {}
    for j, n in enumerate(numbered):
        latent = ranks[of(j, len(ranks))][0].double()
        for a in range(3):
            latent = latent.narrow(a + 2, n[a] * stride[a], extent[n][a])
        latent = latent[:, [c % z.shape[1] for c in range(3)]]
        for a in range(3):
            matrix = interpolation(extent[n][a], scale[a])
            latent = (latent.transpose(a + 2, -1) @ matrix.T).transpose(a + 2, -1)
        decoded[n] = latent.to(z.dtype).double()

    total = [
        (count[a] - 1) * keep[a] + min(keep[a], (sizes[a] - (count[a] - 1) * stride[a]) * scale[a]) for a in range(3)
    ]
    whole = torch.zeros(z.shape[0], 3, *total, dtype=torch.float64)
    done = {}
    for n in sorted(numbered):
        out = decoded[n].clone()
        for a in axes:
            if n[a]:
                before = (decoded if as_decoded else done)[tuple(n[b] - (b == a) for b in range(3))]
                e = min(mix[a], before.shape[a + 2], out.shape[a + 2])
                for i in range(e):
                    old, new = before.select(a + 2, before.shape[a + 2] - e + i), out.select(a + 2, i)
                    new.copy_(old * (1 - ramp(i, e)) + new * ramp(i, e))
        done[n] = out
        where = [slice(n[a] * keep[a], n[a] * keep[a] + min(keep[a], out.shape[a + 2])) for a in range(3)]
        whole[:, :, where[0], where[1], where[2]] = out[:, :, : keep[0], : keep[1], : keep[2]]
    return whole.to(z.dtype)


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return everyone(picture(ranks), ranks)


def own(ranks: list[Arguments]) -> list[torch.Tensor]:
    return [picture(ranks, of=lambda j, size, rank=rank: rank) for rank in range(len(ranks))]


def by_number(ranks: list[Arguments]) -> list[torch.Tensor]:
    return everyone(picture(ranks, by_size=False), ranks)


def other_ramp(ranks: list[Arguments]) -> list[torch.Tensor]:
    return everyone(picture(ranks, ramp=lambda i, e: (i + 1) / (e + 1)), ranks)


def not_in_time(ranks: list[Arguments]) -> list[torch.Tensor]:
    return everyone(picture(ranks, axes=(1, 2)), ranks)


def with_blended(ranks: list[Arguments]) -> list[torch.Tensor]:
    return everyone(picture(ranks, as_decoded=False), ranks)


WRONG = {
    "every tile from the own latents": own,
    "tiles assigned by number": by_number,
    "another ramp": other_ramp,
    "no blending in time": not_in_time,
    "blended with what is already blended": with_blended,
}
