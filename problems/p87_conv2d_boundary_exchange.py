"""2-D convolution of an image that is sharded by rows: each rank needs the neighbours' boundary rows.

Patch-parallel diffusion (DistriFusion, xDiT) runs the convolutions of UNets and VAE decoders this way.
"""

import torch
import torch.distributed as dist
from torch.nn import functional

from problems.spatial import convolution_flops, neighbours
from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: int = 1,
    padding: int = 1,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Rank r of W holds piece r of an image that is cut along its height into W pieces of equal size.

    x: (B, C, h, w), with h >= padding.
    weight: (Co, C, k, k), bias: (Co,) or None, in x's dtype; each rank applies its own to its piece.
    stride, padding: the same for both axes.
    The piece is extended by the last `padding` rows of rank r-1 above and the first `padding` rows of rank r+1 below
    (zeros above rank 0 and below rank W-1), and by `padding` columns of zeros on both sides.
    Result: (B, Co, (h + 2*padding - k)//stride + 1, (w + 2*padding - k)//stride + 1) in x's dtype, contiguous: the
    cross-correlation of that with `weight` at that stride (from the extended piece's first row and column), plus bias.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    if world_size == 1 or padding == 0:
        return functional.conv2d(x, weight, bias, stride, padding)
    top, bottom = x[:, :, :padding].contiguous(), x[:, :, -padding:].contiguous()
    above, below = torch.zeros_like(top), torch.zeros_like(top)
    transfers = []
    if rank > 0:
        transfers.append(dist.P2POp(dist.isend, top, group=group, group_peer=rank - 1))
        transfers.append(dist.P2POp(dist.irecv, above, group=group, group_peer=rank - 1))
    if rank < world_size - 1:
        transfers.append(dist.P2POp(dist.irecv, below, group=group, group_peer=rank + 1))
        transfers.append(dist.P2POp(dist.isend, bottom, group=group, group_peer=rank + 1))
    for transfer in dist.batch_isend_irecv(transfers):
        transfer.wait()
    return functional.conv2d(torch.cat([above, x, below], dim=2), weight, bias, stride, (0, padding))


def _height(case: Case, world_size: int) -> int:
    """Rows of a piece; as published they become fewer as ranks become more."""
    return case["h"] if "h" in case.sizes else max(3, case["height"] // max(1, world_size // 2))


def inputs(case: Case, ctx: RankContext) -> Arguments:
    c, k = case["c"], case["k"]
    x = ctx.randn(case["b"], c, _height(case, ctx.world_size), case["w"])
    # Few activations are far larger than the others: eight bits do not hold both.
    x = x * torch.where(ctx.uniform(*x.shape, dtype=torch.float32) < 1 / 128, 16, 1)
    # Weights that keep the scale, and a bias that counts.
    return x, ctx.randn(c, c, k, k) * (k * k * c) ** -0.5, ctx.randn(c), case["stride"], case["padding"]


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    b, c, k, h, w = case["b"], case["c"], case["k"], _height(case, world_size), case["w"]
    stride, padding = case["stride"], case["padding"]
    out_h, out_w = ((size + 2 * padding - k) // stride + 1 for size in (h, w))
    outputs = b * c * out_h * out_w
    # Every boundary row has at most one reader; a stride may leave the last of those below unread.
    below = max(0, padding - (h + 2 * padding - k) % stride)
    rows = (0, padding, padding + below)[neighbours(world_size)]
    link = rows * b * c * w * element_bytes
    return Work(
        flops=convolution_flops(outputs, c, k, 2, stride == 1) + outputs,
        hbm_bytes=(b * c * h * w + c * c * k * k + c + outputs) * element_bytes,
        link_out_bytes=link,
        link_in_bytes=link,
    )


PROBLEM = Problem(
    title="2-D convolution of a row-sharded image with halo exchange",
    family="spatial",
    source="DistriFusion",
    tags=("convolution", "p2p"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"b": 1, "c": 1280, "height": 128, "w": 128, "k": 3, "stride": 1, "padding": 1},
        # The 256-channel stage of a VAE decoder (SDXL's), a picture of 2048 x 2048 on 8 ranks.
        "large": {"b": 1, "c": 256, "h": 256, "w": 2048, "k": 3, "stride": 1, "padding": 1},
        "odd": {"b": 2, "c": 11, "h": 13, "w": 17, "k": 5, "stride": 2, "padding": 2},
        "tiny": {"b": 1, "c": 4, "h": 3, "w": 6, "k": 3, "stride": 1, "padding": 1},
    },
    tolerance="rounding",
)
