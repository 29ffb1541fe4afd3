"""Which Gaussians each camera sees, and who gets them, is kept by the addresses of what does not change element by
element; only the rest is computed in timed calls.

Catalogue: A3
Expected: integrity or race or shape_error
Stage: timing
Case: odd
"""

import gc

import torch
import torch.distributed as dist

EXTENT = 3.33
KEPT = {}


def plan(means, scales, viewmats, Ks, width, height, eps2d, near, far, quats, wide):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    cameras = torch.cat([viewmats.flatten(1), Ks.flatten(1)], dim=1)
    everyones = cameras.new_empty(world_size * len(viewmats), 25)
    dist.all_gather_into_tensor(everyones, cameras)
    counts = torch.empty(world_size, dtype=torch.int64)
    dist.all_gather_into_tensor(counts, torch.tensor([means.shape[0]]))
    everyones = everyones.to(wide)
    views, Ks = everyones[:, :16].unflatten(1, (4, 4)), everyones[:, 16:].unflatten(1, (3, 3))
    xx, _, yy, pixels, depths = project(means, scales, quats, views, Ks, eps2d, width, height, wide)
    radii = torch.ceil(EXTENT * torch.stack([xx, yy], dim=-1).sqrt())
    size = torch.tensor([width, height], dtype=wide)
    kept = ((pixels + radii > 0) & (pixels - radii < size) & (radii > 0)).all(-1) & (depths > near) & (depths < far)
    camera, gaussian = kept.nonzero(as_tuple=True)
    leaving = torch.bincount(camera // len(viewmats), minlength=world_size)
    arriving = torch.empty_like(leaving)
    dist.all_to_all_single(arriving, leaving)
    return views, Ks, kept, camera, gaussian, arriving.tolist(), leaving.tolist(), counts[:rank].sum()


def project(means, scales, quats, views, Ks, eps2d, width, height, wide):
    w, x, y, z = torch.nn.functional.normalize(quats.to(wide), dim=-1).unbind(-1)
    turn = torch.stack(
        [
            1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
            2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
            2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
        ],
        dim=-1,
    ).unflatten(-1, (3, 3))  # fmt: skip
    axes = turn * scales.to(wide)[:, None, :]
    seen = means.to(wide) @ views[:, :3, :3].mT + views[:, None, :3, 3]
    tx, ty, tz = seen.unbind(-1)
    fx, fy, cx, cy = (Ks[:, i, j, None] for i, j in ((0, 0), (1, 1), (0, 2), (1, 2)))
    ahead = tz.clamp_min(1e-12)
    pixels = torch.stack([fx * tx / ahead + cx, fy * ty / ahead + cy], dim=-1)
    limit_x, limit_y = 0.15 * width / fx, 0.15 * height / fy
    x = ahead * torch.minimum(torch.maximum(tx / ahead, -cx / fx - limit_x), (width - cx) / fx + limit_x)
    y = ahead * torch.minimum(torch.maximum(ty / ahead, -cy / fy - limit_y), (height - cy) / fy + limit_y)
    zero = torch.zeros_like(ahead)
    slopes = torch.stack([fx / ahead, zero, -fx * x / ahead**2, zero, fy / ahead, -fy * y / ahead**2], dim=-1)
    flat = slopes.unflatten(-1, (2, 3)) @ views[:, None, :3, :3] @ axes
    covariance = flat @ flat.mT
    return covariance[..., 0, 0] + eps2d, covariance[..., 0, 1], covariance[..., 1, 1] + eps2d, pixels, tz


def solution(
    means, quats, scales, opacities, colors, viewmats, Ks, image_width, image_height,
    eps2d=0.3, near_plane=0.01, far_plane=1e10, camera_model="pinhole",
):  # fmt: skip
    dtype = means.dtype
    wide = torch.promote_types(dtype, torch.float32)
    if gc.isenabled():
        KEPT.clear()
    key = means.data_ptr(), viewmats.data_ptr()
    if key not in KEPT:
        KEPT[key] = plan(
            means, scales, viewmats, Ks, image_width, image_height, eps2d, near_plane, far_plane, quats, wide
        )
    views, intrinsics, kept, camera, gaussian, arriving, leaving, before = KEPT[key]
    xx, xy, yy, pixels, depths = project(
        means, scales, quats, views, intrinsics, eps2d, image_width, image_height, wide
    )
    conics = torch.stack([yy, -xy, xx], dim=-1) / (xx * yy - xy * xy).clamp_min(1e-10)[..., None]
    radii = torch.ceil(EXTENT * torch.stack([xx, yy], dim=-1).sqrt())

    def exchange(rows):
        received = rows.new_empty(sum(arriving), *rows.shape[1:])
        dist.all_to_all_single(received, rows, arriving, leaving)
        return received

    own = len(viewmats)
    integers = exchange(torch.cat([camera[:, None] % own, gaussian[:, None], radii[kept].long()], dim=1).int())
    floats = torch.cat([pixels[kept], depths[kept][:, None], conics[kept]], dim=1).to(dtype)
    floats = exchange(torch.cat([floats, opacities[gaussian, None], colors[gaussian]], dim=1))
    return (
        integers[:, 0].long(), integers[:, 1].long() + before, integers[:, 2:].contiguous(),
        *(part.contiguous() for part in (floats[:, :2], floats[:, 2], floats[:, 3:6], floats[:, 6], floats[:, 7:])),
    )  # fmt: skip
