"""2-D real-to-complex FFT: fields come with their last axis sharded, half spectra leave with their first.

Spectral layers of weather models (PhysicsNeMo: SFNO, AFNO) transform fields that are too large for one GPU this way.
"""

import torch
import torch.distributed as dist

from problems.spatial import extent, fft_flops, wide_bytes
from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(
    x: torch.Tensor,
    s: list[int],
    dim: list[int],
    norm: str = "ortho",
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Rank r of W holds columns r*V/W to (r+1)*V/W of B real fields of H x V points.

    x: (B, H, V/W), float32 in every run (float64 in a float64 run).
    s: [H, V], the global lengths, both multiples of W.
    dim: [1, 2], the axes of x that they belong to.
    norm: "ortho", as in torch.fft.
    Result: (B, H/W, V//2 + 1), complex64 (complex128), contiguous: rows r*H/W to (r+1)*H/W of the 2-D real FFT of the
    global fields.
    """
    world_size = dist.get_world_size(group)
    first, last = dim
    columns = torch.fft.fft(x, n=s[0], dim=first, norm=norm)
    pieces = [torch.view_as_real(piece.contiguous()) for piece in columns.chunk(world_size, dim=first)]
    received = [torch.empty_like(piece) for piece in pieces]
    dist.all_to_all(received, pieces, group=group)
    rows = torch.cat([torch.view_as_complex(piece) for piece in received], dim=last)
    spectrum = torch.fft.fft(rows, n=s[1], dim=last, norm=norm)
    return spectrum.narrow(last, 0, s[1] // 2 + 1).contiguous()


def inputs(case: Case, ctx: RankContext) -> Arguments:
    h, v = extent(case, "h", ctx.world_size), extent(case, "v", ctx.world_size)
    x = ctx.randn(case["b"], h, v // ctx.world_size, dtype=ctx.wide)
    return x, [h, v], [1, 2], "ortho"


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    b, h, v = case["b"], extent(case, "h", world_size), extent(case, "v", world_size)
    real = wide_bytes(element_bytes)
    rows, columns, half = h // world_size, v // world_size, v // 2 + 1
    out_elements = in_elements = 0
    if world_size > 1:
        # Row -h of a real column's spectrum is row h's conjugate. Others need all of rank 0's but row 0, each once.
        out_elements = b * (h - 1) * columns
        # Complex rows arrive, from the others' columns or already summed up to half a spectrum; row 0 counts half.
        in_elements = b * (2 * rows - 1) * min(v - columns, half)
    return Work(
        flops=fft_flops(b * h * v, h * v) / world_size,
        hbm_bytes=b * (h * columns + 2 * rows * half) * real,
        link_out_bytes=out_elements * real,
        link_in_bytes=in_elements * real,
    )


PROBLEM = Problem(
    title="Distributed 2-D real-to-complex FFT",
    family="spatial",
    source="PhysicsNeMo",
    tags=("fft", "all_to_all"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        # Lengths are rounded up to multiples of the world size.
        "pkb": {"b": 16, "h": 1024, "v": 1024},
        # 256 channels on the quarter-degree grid of ERA5, as in FourCastNet.
        "large": {"b": 256, "h": 720, "v": 1440},
        "odd": {"b": 3, "h_per_rank": 29, "v_per_rank": 37},
        "tiny": {"b": 2, "h_per_rank": 3, "v_per_rank": 5},
    },
    tolerance="rounding",
)
