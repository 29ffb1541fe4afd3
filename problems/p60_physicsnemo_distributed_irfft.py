"""2-D complex-to-real inverse FFT: half spectra come with their first axis sharded, fields leave with their last.

The way back from spectral to grid space in weather models that run over several GPUs (PhysicsNeMo).
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
    """Rank r of W holds rows r*H/W to (r+1)*H/W of the half spectra of B*C real fields of H x V points.

    x: (B, C, H/W, V//2 + 1), complex64 in every run (complex128 in a float64 run). Its columns 0 and V/2 need not be
        Hermitian; what is not cancels in the result, as in torch.fft.irfft2.
    s: [H, V], the global lengths, both multiples of W.
    dim: [-2, -1], the axes of x that they belong to.
    norm: "ortho", as in torch.fft.
    Result: (B, C, H, V/W), float32 (float64), contiguous: columns r*V/W to (r+1)*V/W of the inverse real FFT of the
    global half spectra.
    """
    world_size = dist.get_world_size(group)
    first, last = dim
    half = s[1] // 2 + 1
    # The missing half of the spectrum contributes the conjugate of what the other half does, so the real part is the
    # same if each column that has a mirror image counts twice. No row of another rank is needed for that.
    twice = torch.full((half,), 2.0, dtype=x.real.dtype, device=x.device)
    twice[:1].fill_(1)
    if s[1] % 2 == 0:
        twice[-1:].fill_(1)
    weighted = x.narrow(last, 0, half) * twice  # `last` is -1
    rows = torch.fft.ifft(weighted, n=s[1], dim=last, norm=norm)  # zeros above
    pieces = [torch.view_as_real(piece.contiguous()) for piece in rows.chunk(world_size, dim=last)]
    received = [torch.empty_like(piece) for piece in pieces]
    dist.all_to_all(received, pieces, group=group)
    columns = torch.cat([torch.view_as_complex(piece) for piece in received], dim=first)
    return torch.fft.ifft(columns, n=s[0], dim=first, norm=norm).real.contiguous()


def inputs(case: Case, ctx: RankContext) -> Arguments:
    h, v = extent(case, "h", ctx.world_size), extent(case, "v", ctx.world_size)
    rows, lengths = h // ctx.world_size, ([h, v], [-2, -1], "ortho")
    if case.name == "pkb":
        field = ctx.shared().randn(case["b"], case["c"], h, v, dtype=ctx.wide)
        spectrum = torch.fft.rfft2(field, norm="ortho").narrow(-2, ctx.rank * rows, rows)
    else:
        # Nobody made these rows Hermitian in the first and the last column, as after a learned filter.
        shape = case["b"], case["c"], rows, v // 2 + 1, 2
        spectrum = torch.view_as_complex(ctx.randn(*shape, dtype=ctx.wide) * 0.5**0.5)
    return spectrum.contiguous(), *lengths


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    b, h, v = case["b"] * case["c"], extent(case, "h", world_size), extent(case, "v", world_size)
    real = wide_bytes(element_bytes)
    rows, columns, half = h // world_size, v // world_size, v // 2 + 1
    out_elements = in_elements = 0
    if world_size > 1:
        # The mirror image of problem 59: rank 0's rows leave as they are or as the others' columns of them; at least
        # all but one real row of the own columns arrive, already summed.
        out_elements = b * (2 * rows - 1) * min(v - columns, half)
        in_elements = b * (h - 1) * columns
    return Work(
        flops=fft_flops(b * h * v, h * v) / world_size,
        hbm_bytes=b * (2 * rows * half + h * columns) * real,
        link_out_bytes=out_elements * real,
        link_in_bytes=in_elements * real,
    )


PROBLEM = Problem(
    title="Distributed 2-D complex-to-real inverse FFT",
    family="spatial",
    source="PhysicsNeMo",
    tags=("fft", "all_to_all"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        # Lengths are rounded up to multiples of the world size.
        "pkb": {"b": 2, "c": 10, "h": 720, "v": 1440},
        # 256 channels on the quarter-degree grid of ERA5, as in FourCastNet.
        "large": {"b": 1, "c": 256, "h": 720, "v": 1440},
        "odd": {"b": 1, "c": 3, "h_per_rank": 29, "v_per_rank": 37},
        "tiny": {"b": 1, "c": 2, "h_per_rank": 3, "v_per_rank": 5},
    },
    tolerance="rounding",
)
