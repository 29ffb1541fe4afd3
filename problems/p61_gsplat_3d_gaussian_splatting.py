"""Projection of 3-D Gaussians that are spread over ranks: each rank projects its own to all cameras and sends every
camera's owner what it can see.

The first half of distributed Gaussian splatting (gsplat, Grendel); the owners then rasterise their pictures.
"""

import torch
import torch.distributed as dist
from torch.nn import functional

from problems.spec import Arguments, Case, Problem, RankContext, Work

# torch 2.13 renamed the call and warns on every use of the old name; earlier versions know only that.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

# Of a projected Gaussian, in standard deviations: beyond that it is not drawn.
EXTENT = 3.33


def rotations(quats: torch.Tensor) -> torch.Tensor:
    """(n, 4) in the order w, x, y, z, of any length, to (n, 3, 3)."""
    w, x, y, z = functional.normalize(quats, dim=-1).unbind(-1)
    entries = [
        1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
        2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
        2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
    ]  # fmt: skip
    return torch.stack(entries, dim=-1).unflatten(-1, (3, 3))


def project(
    means: torch.Tensor, covariances: torch.Tensor, viewmats: torch.Tensor, Ks: torch.Tensor, width: int, height: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """n Gaussians to C pinhole cameras: means (C, n, 2) and covariances (C, n, 2, 2) in pixels, depths (C, n)."""
    turn, shift = viewmats[:, :3, :3], viewmats[:, :3, 3]
    seen = means @ turn.mT + shift[:, None]
    x, y, z = seen.unbind(-1)
    fx, fy, cx, cy = (Ks[:, i, j, None] for i, j in ((0, 0), (1, 1), (0, 2), (1, 2)))
    # The linearisation, not the mean, stays within 0.3 half pictures of the picture.
    side_x, side_y = 0.3 * 0.5 * width / fx, 0.3 * 0.5 * height / fy
    slope_x = torch.minimum(torch.maximum(x / z, -(cx / fx + side_x)), (width - cx) / fx + side_x)
    slope_y = torch.minimum(torch.maximum(y / z, -(cy / fy + side_y)), (height - cy) / fy + side_y)
    zero = torch.zeros_like(z)
    jacobian = torch.stack([fx / z, zero, -fx * slope_x / z, zero, fy / z, -fy * slope_y / z], dim=-1)
    to_pixels = jacobian.unflatten(-1, (2, 3)) @ turn[:, None]
    pixels = (seen @ Ks[:, :2].mT) / z[..., None]
    return pixels, to_pixels @ covariances @ to_pixels.mT, z


def reference(
    means: torch.Tensor,
    quats: torch.Tensor,
    scales: torch.Tensor,
    opacities: torch.Tensor,
    colors: torch.Tensor,
    viewmats: torch.Tensor,
    Ks: torch.Tensor,
    image_width: int,
    image_height: int,
    eps2d: float = 0.3,
    near_plane: float = 0.01,
    far_plane: float = 1e10,
    camera_model: str = "pinhole",
) -> tuple[torch.Tensor, ...]:
    """Rank r holds n_r Gaussians (n_r may differ between ranks) and owns c cameras (c is the same on all ranks).

    means (n_r, 3), quats (n_r, 4) in the order w, x, y, z and not normalised, scales (n_r, 3), opacities (n_r,),
    colors (n_r, 3): the rank's Gaussians. viewmats (c, 4, 4), world to camera, and Ks (c, 3, 3), upper triangular
    intrinsics: the rank's cameras. All tensors have one dtype; it is computed in float32 at least and rounded to that
    dtype at the end. Numbers are the same on all ranks; camera_model is always "pinhole".

    A pair (camera, Gaussian) is kept if near_plane < depth < far_plane and the box mean +- radius, with radius =
    ceil(3.33 * standard deviation) on each axis after eps2d has been added to both variances, overlaps the picture:
    mean + radius > 0 and mean - radius < size. No kept or dropped pair is near one of these limits.
    Every kept pair goes to the rank that owns the camera. Result, on each rank, for its Q kept pairs, ordered by the
    rank that the Gaussian comes from, then by camera, then by the Gaussian's index there (all contiguous):
    camera ids (Q,) int64, 0 to c-1 among the own ones; Gaussian ids (Q,) int64, the index there plus the number of
    Gaussians on all ranks before *this* one (as published: not before the one that it comes from); radii (Q, 2) int32;
    means (Q, 2) in pixels; depths (Q,); conics (Q, 3), the inverse covariance's xx, xy and yy; opacities (Q,); colors
    (Q, 3); these in the inputs' dtype.
    """
    if camera_model != "pinhole":
        raise ValueError(f"camera model {camera_model!r} is not supported")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    dtype, device, own_cameras = means.dtype, means.device, viewmats.shape[0]
    wide = torch.promote_types(dtype, torch.float32)

    cameras = torch.cat([viewmats.flatten(1), Ks.flatten(1)], dim=1)
    all_cameras = cameras.new_empty(world_size * own_cameras, 25)
    all_gather(all_cameras, cameras)
    counts = torch.empty(world_size, dtype=torch.int64, device=device)
    all_gather(counts, torch.tensor([means.shape[0]], device=device))

    all_cameras = all_cameras.to(wide)
    axes = rotations(quats.to(wide)) * scales.to(wide)[:, None, :]
    pixels, covariances, depths = project(
        means.to(wide), axes @ axes.mT, all_cameras[:, :16].unflatten(1, (4, 4)),
        all_cameras[:, 16:].unflatten(1, (3, 3)), image_width, image_height,
    )  # fmt: skip
    xx, xy, yy = covariances[..., 0, 0] + eps2d, covariances[..., 0, 1], covariances[..., 1, 1] + eps2d
    determinant = (xx * yy - xy * xy).clamp_min(1e-10)
    conics = torch.stack([yy, -xy, xx], dim=-1) / determinant[..., None]
    radii = torch.ceil(EXTENT * torch.stack([xx, yy], dim=-1).sqrt())
    size = torch.tensor([image_width, image_height], dtype=wide, device=device)
    kept = ((pixels + radii > 0) & (pixels - radii < size) & (radii > 0)).all(-1)
    kept &= (depths > near_plane) & (depths < far_plane)

    camera, gaussian = kept.nonzero(as_tuple=True)  # ordered by camera
    leaving = torch.bincount(camera // own_cameras, minlength=world_size)
    arriving = torch.empty_like(leaving)
    dist.all_to_all_single(arriving, leaving)
    splits = arriving.tolist(), leaving.tolist()

    def exchange(rows: torch.Tensor) -> torch.Tensor:
        received = rows.new_empty(sum(splits[0]), *rows.shape[1:])
        dist.all_to_all_single(received, rows, *splits)
        return received

    integers = torch.cat([camera[:, None] % own_cameras, gaussian[:, None], radii[kept].long()], dim=1)
    integers = exchange(integers.to(torch.int32))
    floats = torch.cat([pixels[kept], depths[kept][:, None], conics[kept]], dim=1).to(dtype)
    floats = exchange(torch.cat([floats, opacities[gaussian, None], colors[gaussian]], dim=1))
    return (
        integers[:, 0].long(),
        integers[:, 1].long() + counts[:rank].sum(),
        integers[:, 2:].contiguous(),
        *(part.contiguous() for part in (floats[:, :2], floats[:, 2], floats[:, 3:6], floats[:, 6], floats[:, 7:])),
    )


# Elsewhere than in `pkb`, where nothing is nearer or farther than the limits.
NEAR, FAR = 1.0, 6.0


def _gaussians(case: Case, rank: int) -> int:
    """As published the same on every rank; elsewhere uneven."""
    return case["n"] if case.name == "pkb" else case["n"] - case["n"] // 8 * (rank % 3)


def _cameras(case: Case, ctx: RankContext) -> tuple[torch.Tensor, torch.Tensor]:
    """All ranks' cameras: around the origin, which all of them see well, at distances from 4 to 5."""
    common, count = ctx.stream("cameras"), ctx.world_size * case["c"]
    wide = torch.float64
    away = functional.normalize(common.randn(count, 3, dtype=wide), dim=1)
    position = away * common.uniform(count, 1, low=4, high=5, dtype=wide)
    forward = functional.normalize(common.uniform(count, 3, low=-0.3, high=0.3, dtype=wide) - position, dim=1)
    right = functional.normalize(torch.linalg.cross(forward, common.randn(count, 3, dtype=wide)), dim=1)
    turn = torch.stack([right, torch.linalg.cross(forward, right), forward], dim=1)
    viewmats = torch.eye(4, dtype=wide, device=position.device).repeat(count, 1, 1)
    viewmats[:, :3, :3] = turn
    viewmats[:, :3, 3] = -(turn @ position[:, :, None])[:, :, 0]
    size = torch.tensor([case["width"], case["height"]], dtype=wide, device=position.device)
    Ks = torch.eye(3, dtype=wide, device=position.device).repeat(count, 1, 1)
    Ks[:, [0, 1], [0, 1]] = size.min() * common.uniform(count, 2, low=0.7, high=1.0, dtype=wide)
    Ks[:, :2, 2] = size * common.uniform(count, 2, low=0.45, high=0.55, dtype=wide)
    return viewmats.to(ctx.dtype), Ks.to(ctx.dtype)


def _clear(
    case: Case, means: torch.Tensor, scales: torch.Tensor, cameras: tuple[torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    """Which Gaussians are, for every camera and however they are turned, clearly kept or clearly dropped."""
    near, far, width, height = NEAR, FAR, case["width"], case["height"]
    nothing = torch.zeros(len(means), 3, 3, dtype=means.dtype, device=means.device)
    unit = torch.eye(3, dtype=means.dtype, device=means.device).expand_as(nothing)
    pixels, spread, depths = project(means, unit, *cameras, width, height)
    spread = torch.stack([spread[..., 0, 0], spread[..., 1, 1]], dim=-1).sqrt()
    least, most = (
        EXTENT * (factor * s[:, None] * spread) for factor, s in ((0.97, scales.amin(1)), (1.03, scales.amax(1)))
    )
    size = torch.tensor([width, height], dtype=means.dtype, device=means.device)
    kept = ((pixels + least > 1) & (pixels - least < size - 1)).all(-1) & (depths > near) & (depths < far)
    # eps2d adds less than 2 pixels, rounding up less than 1.
    hidden = ((pixels + most < -4) | (pixels - most > size + 4)).any(-1) | (depths < near) | (depths > far)
    margins = ((depths - near).abs() > 0.02) & ((depths - far).abs() > 0.02) & (depths.abs() > 0.02)
    return ((kept | hidden) & margins).all(0)


def inputs(case: Case, ctx: RankContext) -> Arguments:
    n, c, width, height = _gaussians(case, ctx.rank), case["c"], case["width"], case["height"]
    quats, opacities, colors = ctx.randn(n, 4), ctx.uniform(n, low=0.1, high=0.9), ctx.uniform(n, 3)
    if case.name == "pkb":
        means = ctx.uniform(n, 3, dtype=torch.float32)
        offset, scale = torch.tensor([[-0.75, -0.75, 2.0], [1.5, 1.5, 2.0]], device=means.device)
        Ks = torch.tensor([[[0.8, 0.0, width / 2], [0.0, 0.8, height / 2], [0.0, 0.0, 1.0]]], device=means.device)
        Ks[:, [0, 1], [0, 1]] *= min(width, height)
        Ks, viewmats = Ks.repeat(c, 1, 1).to(ctx.dtype), torch.eye(4, device=means.device).repeat(c, 1, 1).to(ctx.dtype)
        scales = ctx.uniform(n, 3, high=0.02)
        means = (means * scale + offset).to(ctx.dtype)
        return means, quats, scales, opacities, colors, viewmats, Ks, width, height, 0.3, 0.01, 1e10, "pinhole"

    viewmats, Ks = _cameras(case, ctx)
    cameras = viewmats.double(), Ks.double()
    # Most are small and thin; one in eight is a large ball, which may reach into a picture from far outside.
    size = 10 ** ctx.uniform(n, 1, low=-2, high=-1, dtype=torch.float32)
    ball = ctx.uniform(n, 1, dtype=torch.float32) < 1 / 8
    thin = size * ctx.uniform(n, 3, low=0.2, high=1, dtype=torch.float32)
    scales = torch.where(ball, 4 * size, thin).to(ctx.dtype)
    # A quarter lies around the origin, where every camera sees it. The others are scattered around a place of the
    # rank's own, or drawn towards some camera; what is no clear case moves to the origin in the end.
    origin = functional.normalize(ctx.randn(n, 3, dtype=torch.float32), dim=1) * ctx.uniform(n, 1, high=0.7)
    means = origin = origin.to(ctx.dtype)
    moving = torch.arange(n, device=means.device) >= n // 4
    place = ctx.uniform(1, 3, low=-1.5, high=1.5, dtype=torch.float32)
    eyes = -(viewmats[:, :3, :3].mT @ viewmats[:, :3, 3:])[:, :, 0].float()
    for _ in range(8):
        scattered = place + 2.5 * ctx.randn(n, 3, dtype=torch.float32)
        towards = eyes[ctx.integers(0, len(eyes), n)]
        near_camera = scattered * 0.2 + towards * ctx.uniform(n, 1, low=0.7, high=1, dtype=torch.float32)
        drawn = torch.where(ctx.uniform(n, 1, dtype=torch.float32) < 1 / 8, near_camera, scattered).to(ctx.dtype)
        good = moving & _clear(case, drawn.double(), scales.double(), cameras)
        means = torch.where(good[:, None], drawn, means)
        moving &= ~good
    mixed = ctx.permutation(n)
    own = slice(ctx.rank * c, (ctx.rank + 1) * c)
    return (
        means[mixed], quats, scales[mixed], opacities, colors, viewmats[own], Ks[own],
        width, height, 0.3, NEAR, FAR, "pinhole",
    )  # fmt: skip


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    c, counts = case["c"], [_gaussians(case, rank) for rank in range(world_size)]
    # What every camera sees for certain.
    seen = [n if case.name == "pkb" else n // 4 for n in counts]
    # A kept pair's ids, radii (four bytes each) and attributes; or the Gaussian itself, for all of a rank's cameras.
    projected, raw = 16 + 10 * element_bytes, 14 * element_bytes
    others = world_size - 1
    cameras = 25 * c * element_bytes
    return Work(
        # Only the depth of each pair.
        flops=6 * sum(counts) * c,
        hbm_bytes=14 * max(counts) * element_bytes + sum(seen) * c * (24 + 10 * element_bytes),
        link_out_bytes=min(others * c * projected, raw) * max(seen) + (cameras if others else 0) if others else 0,
        link_in_bytes=(sum(seen) - max(seen)) * min(c * projected, raw) if others else 0,
    )


def unsure(oracle: tuple[torch.Tensor, ...], *arguments: object) -> list[torch.Tensor | None]:
    """Radii whose rounding up hangs on the last digits."""
    xx, xy, yy = oracle[5].unbind(-1)
    exact = EXTENT * (torch.stack([yy, xx], dim=-1) / (xx * yy - xy * xy)[:, None]).sqrt()
    return [None, None, (exact - exact.round()).abs() < 3e-5 * exact + 1e-5, *[None] * 5]


PROBLEM = Problem(
    title="Projection of 3-D Gaussians and their exchange between camera owners",
    family="spatial",
    source="gsplat",
    tags=("all_to_all", "all_gather", "uneven"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"n": 1024, "c": 1, "width": 512, "height": 512},
        # As many Gaussians and cameras, but different ones.
        "default": {"n": 1024, "c": 1, "width": 512, "height": 512},
        # A scene of four million Gaussians on 8 ranks, pictures in full HD.
        "large": {"n": 524288, "c": 1, "width": 1920, "height": 1080},
        "odd": {"n": 211, "c": 3, "width": 127, "height": 93},
        "tiny": {"n": 24, "c": 2, "width": 64, "height": 48},
    },
    tolerance="rounding",
    repair="Published cameras are all the same, unturned, and see every Gaussian: nothing is culled and every rank "
    "receives the same. In `default` cameras differ and see about half, unevenly, and ranks hold different numbers of "
    "Gaussians.",
    changing=(1, 3, 4),
    unsure=unsure,
)
