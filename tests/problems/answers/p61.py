from collections.abc import Callable
from itertools import accumulate

import torch

from problems.spec import Arguments

TRIAL = {"n": 800, "c": 2, "width": 256, "height": 192}


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Of quaternions."""
    aw, av, bw, bv = a[..., :1], a[..., 1:], b[..., :1], b[..., 1:]
    return torch.cat(
        [aw * bw - (av * bv).sum(-1, keepdim=True), aw * bv + bw * av + torch.linalg.cross(av, bv)], dim=-1
    )


def turned(quats: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    unit = quats / quats.norm(dim=-1, keepdim=True)
    pure = torch.cat([torch.zeros_like(vectors[..., :1]), vectors], dim=-1)
    return product(product(unit, pure), unit * unit.new_tensor([1, -1, -1, -1]))[..., 1:]


def seen_by(
    gaussians: tuple[torch.Tensor, ...],
    viewmat: torch.Tensor,
    K: torch.Tensor,
    numbers: tuple,
    clamp: bool = True,
    eps: bool = True,
    planes: bool = True,
) -> tuple[torch.Tensor, ...]:
    """One camera, one rank's Gaussians: indices and attributes of what it sees. Each Gaussian is its three half axes;
    an axis becomes a vector in the picture by the derivative of the projection."""
    means, quats, scales, opacities, colors = (t.double() for t in gaussians)
    width, height, eps2d, near, far, _ = numbers
    viewmat, K = viewmat.double(), K.double()
    half_axes = turned(quats[:, None], torch.diag_embed(scales))  # (n, which, 3)
    in_camera = means @ viewmat[:3, :3].T + viewmat[:3, 3]
    axes = half_axes @ viewmat[:3, :3].T
    z = in_camera[:, 2]
    flat = []
    for i, size in ((0, width), (1, height)):
        f, centre = K[i, i], K[i, 2]
        slope = in_camera[:, i] / z
        if clamp:
            slope = slope.clamp(-(centre + 0.15 * size) / f, (size - centre + 0.15 * size) / f)
        flat.append(f * (axes[:, :, i] - slope[:, None] * axes[:, :, 2]) / z[:, None])
    flat = torch.stack(flat, dim=-1)  # (n, which, 2)
    spread = torch.einsum("nki,nkj->nij", flat, flat) + (eps2d * torch.eye(2, dtype=flat.dtype) if eps else 0)
    at = (in_camera @ K[:2].T) / z[:, None]
    radii = torch.ceil(3.33 * torch.diagonal(spread, dim1=1, dim2=2).sqrt())
    visible = (at[:, 0] > -radii[:, 0]) & (at[:, 0] < width + radii[:, 0])
    visible &= (at[:, 1] > -radii[:, 1]) & (at[:, 1] < height + radii[:, 1])
    visible &= (z > near) & (z < far) if planes else z > 0
    inverse = torch.linalg.inv(spread)
    which = visible.nonzero()[:, 0]
    conics = torch.stack([inverse[:, 0, 0], inverse[:, 0, 1], inverse[:, 1, 1]], dim=-1)
    return which, *(t[which] for t in (radii.int(), at, z, conics, opacities, colors))


def delivered(ranks: list[Arguments], first: Callable | None = None, **how: bool) -> list[tuple[torch.Tensor, ...]]:
    starts = [0, *accumulate(own[0].shape[0] for own in ranks)]
    answers = []
    for owner, (*_, viewmats, Ks, _, _, _, _, _, _) in enumerate(ranks):
        rows = []
        for source, arguments in enumerate(ranks):
            for camera in range(len(viewmats)):
                which, *attributes = seen_by(arguments[:5], viewmats[camera], Ks[camera], arguments[7:], **how)
                ids = which + starts[first(source) if first else owner]
                rows.append((torch.full_like(which, camera), ids, *attributes))
        dtype = ranks[owner][0].dtype
        columns = (torch.cat(column) for column in zip(*rows, strict=True))
        answers.append(tuple(column.to(dtype) if column.is_floating_point() else column for column in columns))
    return answers


def oracle(ranks: list[Arguments]) -> list[tuple[torch.Tensor, ...]]:
    return delivered(ranks)


def sources_offset(ranks: list[Arguments]) -> list[tuple[torch.Tensor, ...]]:
    return delivered(ranks, first=lambda source: source)


def without_clamp(ranks: list[Arguments]) -> list[tuple[torch.Tensor, ...]]:
    return delivered(ranks, clamp=False)


def without_eps(ranks: list[Arguments]) -> list[tuple[torch.Tensor, ...]]:
    return delivered(ranks, eps=False)


def without_planes(ranks: list[Arguments]) -> list[tuple[torch.Tensor, ...]]:
    return delivered(ranks, planes=False)


def unturned(ranks: list[Arguments]) -> list[tuple[torch.Tensor, ...]]:
    """Quaternions taken in the order x, y, z, w."""
    return delivered([(own[0], own[1].roll(1, -1), *own[2:]) for own in ranks])


WRONG = {
    "ids offset by what lies before the source": sources_offset,
    "no limit for the linearisation": without_clamp,
    "without eps2d": without_eps,
    "all that lies before the camera": without_planes,
    "another order of quaternions": unturned,
}
