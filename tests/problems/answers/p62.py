import torch

from problems.spec import Arguments

TRIAL = {"b": 4, "c": 4, "c_out": 4, "k": 3, "nlat": 24, "groups": 2, "stride": 1, "radius": 3}


def sphere(ranks: list[Arguments], sign: int = 1, bias: bool = True, swapped: bool = False) -> list[torch.Tensor]:
    """One output longitude at a time, all rolled copies of the whole field, dense filters."""
    azimuth, polar = (ranks[0][i].sets for i in (6, 7))
    width, height = len(azimuth[0]), len(polar[0])
    groups, nlon_out, nlon = ranks[0][3:6]
    field = [torch.cat([ranks[p * width + a][0] for a in range(width)], dim=3) for p in range(height)]
    parts: list[list[torch.Tensor]] = []  # [azimuth][polar]: contributions, all output latitudes
    for a in range(width):
        parts.append([])
        for p in range(height):
            psi = ranks[p * width + a][1].to_dense()
            own = field[p].chunk(width, dim=1)[a]
            psi = psi.unflatten(2, (own.shape[2], nlon))
            y = [
                torch.einsum("kiln,bcln->bcki", psi, own.roll(-sign * j * (nlon // nlon_out), dims=3))
                for j in range(nlon_out)
            ]
            parts[a].append(torch.stack(y, dim=-1))
    answers = []
    for rank, (*_, own_bias) in enumerate(ranks):
        p, a = divmod(rank, width)
        y = torch.cat([sum(part) for part in (parts[::-1] if swapped else parts)], dim=1)
        y = y.chunk(height, dim=3)[p].chunk(width, dim=4)[a]
        weight = ranks[rank][2]
        mixed = [
            torch.einsum("bckij,ock->boij", channels, w)
            for channels, w in zip(y.chunk(groups, dim=1), weight.chunk(groups), strict=True)
        ]
        answers.append(torch.cat(mixed, dim=1) + (own_bias[:, None, None] if bias else 0))
    return answers


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return sphere(ranks)


def backwards(ranks: list[Arguments]) -> list[torch.Tensor]:
    return sphere(ranks, sign=-1)


def without_bias(ranks: list[Arguments]) -> list[torch.Tensor]:
    return sphere(ranks, bias=False)


def other_channels(ranks: list[Arguments]) -> list[torch.Tensor]:
    return sphere(ranks, swapped=True)


WRONG = {
    "turned the other way": backwards,
    "without bias": without_bias,
    "channels in reverse order": other_channels,
}
