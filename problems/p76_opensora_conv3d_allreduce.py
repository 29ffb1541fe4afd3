"""3-D convolution whose input channels are sharded: each rank convolves its own, then the ranks sum the outputs.

Open-Sora runs the convolutions of HunyuanVideo's autoencoder this way.
"""

import torch
import torch.distributed as dist
from torch.nn import functional

from problems.spatial import convolution_flops
from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: int | tuple[int, int, int],
    padding: int | tuple[int, int, int],
    dilation: int | tuple[int, int, int],
    groups: int = 1,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """input: (B, Cin/W, T, H, W'), this rank's input channels.
    weight: (Cout, Cin/W, k, k, k), the part of the filters for these channels.
    bias: (Cout,), the same on all ranks, or None.
    stride, padding (with zeros), dilation: one number for all three axes, or three. groups: 1.
    All tensors have one dtype.
    Result: (B, Cout, ...) in that dtype, the same on all ranks, contiguous: the 3-D cross-correlation of all Cin
    channels with the whole filters, plus bias.
    """
    out = functional.conv3d(input, weight, None, stride, padding, dilation, groups)
    dist.all_reduce(out, group=group)
    if bias is not None:
        out += bias[:, None, None, None]
    return out


def _channels(case: Case, world_size: int) -> tuple[int, int]:
    """Input channels of a rank, output channels."""
    if "c" in case.sizes:
        return case["c"] // world_size, case["c"]
    return case["c_in_per_rank"], case["c_out"]


def _steps(case: Case) -> tuple[int, int, int]:
    """Stride, padding, dilation."""
    return (2, 1, 2) if "uncommon" in case.sizes else (1, 0, 1)


def inputs(case: Case, ctx: RankContext) -> Arguments:
    (c_in, c_out), k = _channels(case, ctx.world_size), 3
    x = ctx.randn(case["b"], c_in, case["frames"], case["height"], case["width"])
    # Unit-scale outputs, and a bias that counts.
    weight = ctx.randn(c_out, c_in, k, k, k) * (k**3 * c_in * ctx.world_size) ** -0.5
    return x, weight, ctx.shared().randn(c_out) * 0.25, *_steps(case)


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    (c_in, c_out), (stride, padding, dilation), k = _channels(case, world_size), _steps(case), 3
    sizes = case["frames"], case["height"], case["width"]
    positions = case["b"]
    for size in sizes:
        positions *= (size + 2 * padding - dilation * (k - 1) - 1) // stride + 1
    product = positions * c_out
    field, filters = case["b"] * c_in * sizes[0] * sizes[1] * sizes[2], c_out * c_in * k**3
    # A rank may send its product (the switch adds, so one arrives) or its operands, where those are smaller.
    out_elements = min(product, field + filters) if world_size > 1 else 0
    in_elements = min(product, (world_size - 1) * (field + filters))
    return Work(
        flops=convolution_flops(product, c_in, k, 3, stride == dilation == 1) + product,
        hbm_bytes=(field + filters + c_out + product) * element_bytes,
        link_out_bytes=out_elements * element_bytes,
        link_in_bytes=in_elements * element_bytes,
    )


def illegal(case: Case, world_size: int) -> str | None:
    if "c" in case.sizes and case["c"] % world_size:
        return f"{case['c']} input channels do not divide evenly over {world_size} ranks"
    return None


PROBLEM = Problem(
    title="3-D convolution over sharded input channels, then sum over ranks",
    family="tensor",
    source="Open-Sora",
    tags=("convolution", "all_reduce"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"b": 1, "c": 512, "frames": 19, "height": 66, "width": 66},
        # The 256-channel stage of HunyuanVideo's decoder: 17 frames at half the resolution of a 256-pixel tile.
        "large": {"b": 1, "c": 256, "frames": 19, "height": 130, "width": 130},
        # With stride 2, padding 1, dilation 2.
        "odd": {"b": 2, "c_in_per_rank": 3, "c_out": 7, "frames": 7, "height": 13, "width": 11, "uncommon": 1},
        "tiny": {"b": 1, "c_in_per_rank": 2, "c_out": 3, "frames": 3, "height": 5, "width": 4},
    },
    tolerance="rounding",
    illegal=illegal,
)
