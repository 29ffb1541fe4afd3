"""Tile-parallel decoding of video latents: tiles are spread over ranks, decoded, blended at their seams and assembled.

Magi-1 decodes its autoencoder's latents this way. Here interpolation stands for the decoder.
"""

import itertools
import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.nn import functional

from problems.spec import Arguments, Case, Problem, RankContext, Work

# torch 2.13 renamed the call and warns on every use of the old name; earlier versions know only that.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

Tile = tuple[int, ...]
AXES = range(3)  # T, H, W


def cut(size: int, tile: int, overlap: float) -> list[tuple[int, int]]:
    """Where the tiles of an axis start and stop."""
    stride = int(tile * (1 - overlap))
    if stride <= 0:
        raise ValueError(f"tiles of {tile} that overlap by {overlap} do not advance")
    return [(start, min(start + tile, size)) for start in range(0, size, stride)]


def lengths(cuts: list[list[tuple[int, int]]], tile: Tile) -> list[int]:
    """A tile's latents along each axis; a tile is named by its index on each axis."""
    return [cuts[a][tile[a]][1] - cuts[a][tile[a]][0] for a in AXES]


def in_turn(cuts: list[list[tuple[int, int]]]) -> list[Tile]:
    """All tiles, the largest first, equals in lexical order. The j-th is rank j mod W's."""
    tiles = itertools.product(*(range(len(axis)) for axis in cuts))
    return sorted(tiles, key=lambda tile: -math.prod(lengths(cuts, tile)))


def reference(
    z: torch.Tensor,
    tile_latent_min_length: int,
    tile_latent_min_height: int,
    tile_latent_min_width: int,
    spatial_tile_overlap_factor: float,
    temporal_tile_overlap_factor: float,
    spatial_upsample: int,
    temporal_upsample: int,
    sr_ratio: int = 1,
    first_frame_as_image: bool = False,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """z: (B, C, T, H, W) latents. Every rank has its own, of the same shape and dtype: each tile is decoded from the z
    of the rank that it is assigned to, so the result is a patchwork of all ranks' latents, and the assignment matters.
    All other arguments are the same on all ranks.

    Along each axis a tile has `tile_latent_min_*` latents (one more along T if first_frame_as_image) or what is left at
    the border; the next one starts int(tile * (1 - overlap)) further. Decoded, each is `upsample` times as large
    (spatially also times sr_ratio). Tiles go to the ranks in turn, as in `in_turn`.
    Decoding: trilinear interpolation in float32 at least (half-pixel centres) of channels 0, 1, 2 (modulo C), rounded
    to z's dtype.
    Blending: along T, then H, then W, the first e slices of a tile that has a predecessor on that axis become
    predecessor[-e + i] * (1 - i/e) + own[i] * (i/e), each product and the sum rounded to z's dtype. The predecessor is
    as decoded, not blended; own is what the axes before have made of it. e is `blend`, int(decoded size of a full tile
    * overlap), but at most the size of either tile.
    Then each tile is cut to its first (decoded size of a full tile - `blend`) slices on each axis, and all are joined.
    Result: (B, 3, T', H', W') in z's dtype, contiguous, the same on all ranks.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    wide = torch.promote_types(z.dtype, torch.float32)
    full = [tile_latent_min_length + first_frame_as_image, tile_latent_min_height, tile_latent_min_width]
    overlaps = [temporal_tile_overlap_factor, spatial_tile_overlap_factor, spatial_tile_overlap_factor]
    scales = [temporal_upsample, spatial_upsample * sr_ratio, spatial_upsample * sr_ratio]
    cuts = [cut(z.shape[2 + a], full[a], overlaps[a]) for a in AXES]
    blends = [int(full[a] * scales[a] * overlaps[a]) for a in AXES]
    keeps = [full[a] * scales[a] - blends[a] for a in AXES]
    turns = in_turn(cuts)
    own = turns[rank::world_size]

    def exchange(tiles: list[torch.Tensor], limits: Sequence[float]) -> dict[Tile, torch.Tensor]:
        """Every rank's tiles, their sizes limited on each axis. What ranks send is filled up to the same length."""
        shapes, counts = {}, []
        for r in range(world_size):
            for tile in turns[r::world_size]:
                size = [int(min(n * scales[a], limits[a])) for a, n in enumerate(lengths(cuts, tile))]
                shapes[tile] = [z.shape[0], 3, *size]
            counts.append([math.prod(shapes[tile]) for tile in turns[r::world_size]])
        longest = max(map(sum, counts))
        flat = [tile.flatten() for tile in tiles]
        sent = torch.cat([*flat, z.new_zeros(longest - sum(counts[rank]))])
        received = z.new_empty(world_size * longest)
        all_gather(received, sent, group=group)
        found = {}
        for r, part in enumerate(received.split(longest)):
            pieces = part[: sum(counts[r])].split(counts[r])
            for tile, piece in zip(turns[r::world_size], pieces, strict=True):
                found[tile] = piece.view(shapes[tile])
        return found

    def decode(tile: Tile) -> torch.Tensor:
        t, h, w = (slice(*cuts[a][tile[a]]) for a in AXES)
        colours = torch.stack([z[:, c % z.shape[1], t, h, w] for c in range(3)], dim=1)
        return functional.interpolate(colours.to(wide), scale_factor=scales, mode="trilinear").to(z.dtype)

    def blend(tile: Tile) -> torch.Tensor:
        out = decoded[tile].clone()
        for a in AXES:
            if tile[a] == 0 or blends[a] == 0:
                continue
            before = decoded[*tile[:a], tile[a] - 1, *tile[a + 1 :]]
            size = before.shape[2 + a]
            e = min(size, out.shape[2 + a], blends[a])
            ramp = (torch.arange(e, dtype=wide, device=z.device) / e).view(-1, *[1] * (2 - a))
            head, tail = out.narrow(2 + a, 0, e), before.narrow(2 + a, size - e, e)
            head.copy_((tail * (1 - ramp)).to(z.dtype) + (head * ramp).to(z.dtype))
        return out[:, :, : keeps[0], : keeps[1], : keeps[2]]

    decoded = exchange([decode(tile) for tile in own], [math.inf] * 3)
    blended = exchange([blend(tile) for tile in own], keeps)
    along_t, along_h, along_w = (range(len(axis)) for axis in cuts)
    slabs = []
    for t in along_t:
        rows = [torch.cat([blended[t, h, w] for w in along_w], dim=4) for h in along_h]
        slabs.append(torch.cat(rows, dim=3))
    return torch.cat(slabs, dim=2)


def inputs(case: Case, ctx: RankContext) -> Arguments:
    z = ctx.randn(1, case["c"], case["frames"], case["height"], case["width"])
    tiles = case["tile_frames"], case["tile"], case["tile"]
    overlaps = case["space_percent"] / 100, case["time_percent"] / 100
    uncommon = case.name == "odd"
    return z, *tiles, *overlaps, case["up_space"], case["up_time"], 1 + uncommon, uncommon


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    uncommon = case.name == "odd"
    full = case["tile_frames"] + uncommon, case["tile"], case["tile"]
    overlaps = [case[name] / 100 for name in ("time_percent", "space_percent", "space_percent")]
    scales = case["up_time"], case["up_space"] * (1 + uncommon), case["up_space"] * (1 + uncommon)
    sizes = case["frames"], case["height"], case["width"]
    cuts = [cut(sizes[a], full[a], overlaps[a]) for a in AXES]
    outputs, colours = 3, min(case["c"], 3)
    for a in AXES:
        keep = full[a] * scales[a] - int(full[a] * scales[a] * overlaps[a])
        outputs *= sum(min((stop - start) * scales[a], keep) for start, stop in cuts[a])
    # Latents are smaller than what becomes of them. Of a tile at least those count that lie before the next one.
    latents = [0] * world_size
    for j, tile in enumerate(in_turn(cuts)):
        ends = [[start for start, _ in cuts[a][1:]] + [sizes[a]] for a in AXES]
        latents[j % world_size] += colours * math.prod(ends[a][tile[a]] - cuts[a][tile[a]][0] for a in AXES)
    return Work(
        flops=2 * outputs / world_size,
        hbm_bytes=(max(latents) + outputs) * element_bytes,
        link_out_bytes=max(latents) * element_bytes if world_size > 1 else 0,
        link_in_bytes=(sum(latents) - min(latents)) * element_bytes if world_size > 1 else 0,
    )


PROBLEM = Problem(
    title="Tile-parallel decoding of video latents with blended seams",
    family="spatial",
    source="Magi-1",
    tags=("all_gather", "interpolation", "uneven"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {
            "c": 16, "frames": 6, "height": 90, "width": 90, "tile_frames": 3, "tile": 32,
            "time_percent": 0, "space_percent": 25, "up_time": 4, "up_space": 8,
        },
        # Tiles overlap in time as well.
        "default": {
            "c": 16, "frames": 6, "height": 90, "width": 90, "tile_frames": 4, "tile": 32,
            "time_percent": 25, "space_percent": 25, "up_time": 4, "up_space": 8,
        },
        # Two seconds of 720p from Magi-1's latents.
        "large": {
            "c": 16, "frames": 12, "height": 90, "width": 160, "tile_frames": 4, "tile": 32,
            "time_percent": 25, "space_percent": 25, "up_time": 4, "up_space": 8,
        },
        # Two channels for three colours, sr_ratio 2 and first_frame_as_image.
        "odd": {
            "c": 2, "frames": 7, "height": 11, "width": 13, "tile_frames": 3, "tile": 5,
            "time_percent": 25, "space_percent": 40, "up_time": 3, "up_space": 1,
        },
        "tiny": {
            "c": 4, "frames": 3, "height": 6, "width": 7, "tile_frames": 2, "tile": 4,
            "time_percent": 50, "space_percent": 25, "up_time": 2, "up_space": 2,
        },
    },
    tolerance="rounding",
    repair="Published tiles do not overlap in time, so blending along that axis never happens. In `default` they do.",
)  # fmt: skip
