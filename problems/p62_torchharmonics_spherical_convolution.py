"""Convolution on the sphere with filters of small support, over a grid of ranks: latitudes times longitudes.

The local layers of spherical neural operators for weather (torch-harmonics, Makani: discrete-continuous convolutions).
"""

import math

import torch
import torch.distributed as dist

from problems.spatial import wide_bytes
from problems.spec import Arguments, Case, Problem, RankContext, Subgroups, Work

# torch 2.13 renamed the call and warns on every use of the old name; earlier versions know only that.
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def reference(
    x: torch.Tensor,
    psi: torch.Tensor,
    weight: torch.Tensor,
    groups: int,
    nlon_out: int,
    nlon_in: int,
    azimuth_group: dist.ProcessGroup | None = None,
    polar_group: dist.ProcessGroup | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """The azimuth group has A ranks, the polar group P; this rank is a-th and p-th of them. Both split what they split
    into equal parts. All tensors are float32 in every run (float64 in a float64 run).

    x: (B, C, nlat/P, nlon_in/A), the p-th part of the latitudes and the a-th of the longitudes.
    psi: sparse COO, coalesced, (K, nlat, nlat/P * nlon_in): what each output latitude takes from the rank's own input
        latitudes; the last axis is (latitude, longitude). Few entries are not zero. Each rank has its own.
    weight: (Cout, C/groups, K), bias: (Cout,) or None; each rank applies its own. The filter's support, psi, weight and
        bias may be the same on several ranks, but need not.
    nlon_out divides nlon_in; A divides C, nlon_in and nlon_out; P divides nlat; groups divides C and Cout.

    1. The azimuth group's rank a' makes the a'-th part of y's channels c with its own psi; s = nlon_in // nlon_out:
       y[b, c, k, i, j] = sum over lat, lon of psi[k, i, lat*nlon_in + lon] * x[b, c, lat, (lon + j*s) mod nlon_in],
       over its own latitudes and all longitudes.
    2. y is summed over the polar group.
    3. out[b, o, i, j] = sum over k and the channels c of o's group (the o // (Cout/groups)-th of equal groups) of
       y[b, c, k, i, j] * weight[o, c within the group, k], plus bias[o].
    Result: (B, Cout, nlat/P, nlon_out/A), contiguous: the p-th part of the latitudes i, the a-th of the longitudes j.
    """
    azimuths, polars = dist.get_world_size(azimuth_group), dist.get_world_size(polar_group)
    batch, _, rows, _ = x.shape
    kernels, nlat, _ = psi.shape

    # All longitudes of some channels: (nlon, rows, B, C/A).
    columns = x.permute(3, 2, 0, 1).unflatten(3, (azimuths, -1))
    if azimuths > 1:
        sent = columns.movedim(3, 0).contiguous()
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=azimuth_group)
        columns = received.flatten(0, 1)
    columns = columns.reshape(nlon_in, rows, -1)

    # A correlation along circles: for each frequency a matrix product over latitudes.
    filters = psi.to_dense().view(kernels * nlat, rows, nlon_in)
    product = torch.fft.rfft(filters).permute(2, 0, 1).conj() @ torch.fft.rfft(columns, dim=0)
    y = torch.fft.irfft(product, n=nlon_in, dim=0)[:: nlon_in // nlon_out]

    # By receiver: (P, A, nlat/P, nlon_out/A, K, B * C/A).
    y = y.view(azimuths, nlon_out // azimuths, kernels, polars, rows, -1).permute(3, 0, 4, 1, 2, 5).contiguous()
    summed = y[0]
    if polars > 1:
        summed = torch.empty_like(y[0])
        reduce_scatter(summed, y.flatten(0, 1), group=polar_group)  # gloo takes concatenated shapes only
    if azimuths > 1:
        received = torch.empty_like(summed)
        dist.all_to_all_single(received, summed, group=azimuth_group)
        summed = received

    # (B, groups, C/groups, K, nlat/P, nlon_out/A)
    summed = summed.unflatten(-1, (batch, -1)).permute(4, 0, 5, 3, 1, 2)
    summed = summed.reshape(batch, groups, -1, kernels, rows, nlon_out // azimuths)
    out = torch.einsum("bgckij,gock->bgoij", summed, weight.unflatten(0, (groups, -1))).flatten(1, 2)
    return (out if bias is None else out + bias[:, None, None]).contiguous()


def _grid(case: Case, world_size: int) -> tuple[int, int, int, int]:
    """Ranks along longitudes and latitudes, and how many of either there are."""
    azimuths = 1 if world_size % 2 else 2
    polars = world_size // azimuths
    nlat = math.ceil(case["nlat"] / polars) * polars
    unit = azimuths * case["stride"]
    return azimuths, polars, nlat, math.ceil(2 * nlat / unit) * unit


def _published(case: Case, ctx: RankContext) -> tuple[torch.Tensor, torch.Tensor]:
    """Four entries for each kernel and output latitude; their places (3, nnz) and values."""
    azimuths, polars, nlat, nlon = _grid(case, ctx.world_size)
    rows, first = nlat // polars, ctx.rank // azimuths * (nlat // polars)
    k, i, q = (axis.flatten() for axis in torch.meshgrid(*map(torch.arange, (case["k"], nlat, 4)), indexing="ij"))
    places = torch.stack([k, i, (i - first) % rows * nlon + (i + q * (k + 1)) % nlon])
    return places.to(ctx.device), ctx.randn(places.shape[1], dtype=ctx.wide) * 0.05


def _discs(case: Case, ctx: RankContext) -> tuple[torch.Tensor, torch.Tensor]:
    """Kernels are rings around the output point, up to `radius` latitudes wide; every kernel of every output latitude
    has norm one over all input latitudes. Each polar rank keeps its own latitudes."""
    azimuths, polars, nlat, nlon = _grid(case, ctx.world_size)
    rows, polar = nlat // polars, ctx.rank // azimuths
    step, kernels, radius = math.pi / nlat, case["k"], case["radius"]
    i = torch.arange(nlat, device=ctx.device)[:, None, None]
    lat = i + torch.arange(-radius, radius + 1, device=ctx.device)[:, None]
    lon = torch.arange(nlon, device=ctx.device)
    here, there = (i + 0.5).double() * step, (lat + 0.5).double() * step
    cosine = here.cos() * there.cos() + here.sin() * there.sin() * (2 * math.pi / nlon * lon).cos()
    distance = cosine.clamp(-1, 1).acos() / step
    width = (radius + 0.5) / kernels
    rings = torch.stack([(1 - (distance / width - k).abs()).clamp_min(0) for k in range(kernels)])
    rings = torch.where((lat >= 0) & (lat < nlat), rings * there.sin(), 0)
    rings /= rings.flatten(2).norm(dim=2)[..., None, None]
    own = (rings > 0) & (lat >= polar * rows) & (lat < (polar + 1) * rows)
    k, i_at, offset, lon_at = own.nonzero(as_tuple=True)
    # No answer may be kept for fixed places: in each trial the zero meridian is another one.
    turned = (lon_at + ctx.shared().integer(0, nlon)) % nlon
    places = torch.stack([k, i_at, (i_at + offset - radius - polar * rows) * nlon + turned])
    learned = ctx.stream(f"polar {polar}").uniform(places.shape[1], low=0.5, high=1.5, dtype=torch.float32)
    return places, (rings[own] * learned).to(ctx.wide)


def inputs(case: Case, ctx: RankContext) -> Arguments:
    azimuths, polars, nlat, nlon = _grid(case, ctx.world_size)
    b, c, c_out, groups, kernels = (case[name] for name in ("b", "c", "c_out", "groups", "k"))
    x = ctx.randn(b, c, nlat // polars, nlon // azimuths, dtype=ctx.wide)
    if case.name == "pkb":
        (places, values), layer, scale = _published(case, ctx), ctx, 1.0
    else:
        # One layer, replicated; the filters of one polar rank are the same on its azimuth group.
        (places, values), layer, scale = _discs(case, ctx), ctx.stream("layer"), (c // groups * kernels) ** -0.5
    shape = kernels, nlat, nlat // polars * nlon
    psi = torch.sparse_coo_tensor(places, values, shape, check_invariants=False).coalesce()
    weight, bias = layer.randn(c_out, c // groups, kernels, dtype=ctx.wide) * scale, layer.randn(c_out, dtype=ctx.wide)
    azimuth = tuple(tuple(range(p * azimuths, (p + 1) * azimuths)) for p in range(polars))
    polar = tuple(tuple(range(a, ctx.world_size, azimuths)) for a in range(azimuths))
    nlon_out = nlon // case["stride"]
    return x, psi, weight, groups, nlon_out, nlon, Subgroups(azimuth), Subgroups(polar), bias


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    azimuths, polars, nlat, nlon = _grid(case, world_size)
    rows, columns, fields = nlat // polars, nlon // azimuths, case["b"] * min(case["c"], case["c_out"])
    outputs = case["b"] * case["c_out"] * rows * (columns // case["stride"])
    places = 4 * case["k"] * nlat if case.name == "pkb" else case["k"] * rows
    if case.name == "pkb":
        # Every output hangs on the same longitude's neighbourhood at all polar ranks, shifted by the latitude.
        halo = rows * columns / 4 if world_size > 1 else 0
    else:
        # A kernel reaches `radius` latitudes, and at its own latitude at least as many longitudes, to both sides. Half
        # of that is certain to count; a pole has one side only, and of longitudes one side is taken too.
        reach = case["radius"] / case["stride"] / 2
        halo = (min(reach, rows) * columns if polars > 1 else 0) + (min(reach, columns) * rows if azimuths > 1 else 0)
    link = halo / case["stride"] * fields * wide_bytes(element_bytes)
    return Work(
        flops=2 * outputs * case["c"] / case["groups"],
        hbm_bytes=(case["b"] * case["c"] * rows * columns + outputs + places) * wide_bytes(element_bytes),
        link_out_bytes=link,
        link_in_bytes=link,
    )


PROBLEM = Problem(
    title="Spherical convolution over a grid of ranks",
    family="spatial",
    source="torch-harmonics",
    tags=("all_to_all", "reduce_scatter", "sparse", "fft", "subgroups"),
    reference=reference,
    inputs=inputs,
    work=work,
    # Two ranks share the longitudes if there is an even number of ranks. Latitudes are rounded up to a multiple of the
    # polar ranks; there are twice as many longitudes.
    cases={
        "pkb": {"b": 32, "c": 8, "c_out": 8, "k": 3, "nlat": 128, "groups": 1, "stride": 1},
        "default": {"b": 32, "c": 8, "c_out": 8, "k": 3, "nlat": 128, "groups": 1, "stride": 1, "radius": 5},
        # Half a degree, 128 channels: the local branch of a spherical neural operator.
        "large": {"b": 2, "c": 128, "c_out": 128, "k": 3, "nlat": 360, "groups": 1, "stride": 1, "radius": 5},
        "odd": {"b": 3, "c": 6, "c_out": 10, "k": 2, "nlat": 13, "groups": 2, "stride": 2, "radius": 2},
        "tiny": {"b": 2, "c": 4, "c_out": 2, "k": 2, "nlat": 6, "groups": 1, "stride": 1, "radius": 1},
    },
    tolerance="rounding",
    repair="Published filters have four entries for each output latitude, at made-up places, and differ on every rank. "
    "In `default` they are discs on the sphere, as the layer's are, and the layer is replicated.",
)
