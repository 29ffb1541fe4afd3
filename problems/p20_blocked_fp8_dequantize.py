"""Block-scaled FP8 data for every peer: multiply by the scales, then exchange the float32 result all to all.

The way out of an FP8 format (DeepSeek-V3 style blocks) before tokens go to the ranks that hold their experts.
"""

import torch
import torch.distributed as dist

from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(local_y: torch.Tensor, local_s: torch.Tensor, block_size: int = 128) -> torch.Tensor:
    """local_y: (W, M, N), this rank's chunk for each of the W ranks. An FP8 payload in the run's dtype: every value is
    one of the finite numbers of float8_e4m3fn.

    local_s: (W, M*N/block_size) in the run's dtype, the chunks' scales: scale b belongs to elements b*block_size to
    (b+1)*block_size - 1 of the chunk, flattened (blocks may go over the end of a row); block_size divides M*N.
    Both contiguous, different on every rank. With x = y * s in float32 (float64 if y is), returns what the ranks have
    for this one: (W, M, N) in float32 (float64 if y is), where slice q is slice r of rank q's x, on rank r.
    """
    wide = torch.promote_types(local_y.dtype, torch.float32)
    x = (local_y.to(wide).reshape(-1, block_size) * local_s.to(wide).reshape(-1, 1)).reshape(local_y.shape)
    received = torch.empty_like(x)
    dist.all_to_all_single(received, x)
    return received


def inputs(case: Case, ctx: RankContext) -> Arguments:
    m, n, block, world_size = case["m"], case["n"], case["block"], ctx.world_size
    count = world_size * m * n // block
    # As published y is normal, scaled and rounded so that a block's largest element is FP8's largest (without that
    # nothing here would be FP8); scales are positive, as those of a quantisation are, and span decades.
    x = ctx.randn(count, block, dtype=torch.float32)
    y = (x * (448 / x.abs().amax(dim=1, keepdim=True))).to(torch.float8_e4m3fn).to(ctx.dtype)
    s = 10 ** ctx.uniform(world_size, count // world_size, low=-4, high=-0.5, dtype=torch.float32)
    return y.reshape(world_size, m, n), s.to(ctx.dtype), block


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    chunk = case["m"] * case["n"]
    scales = chunk // case["block"] * element_bytes
    # Every chunk has one reader, so no help from a switch. It can cross as it was quantised, one byte for each element.
    link = (world_size - 1) * (chunk + scales)
    return Work(
        flops=world_size * chunk,
        # The result is float32 at least.
        hbm_bytes=world_size * (chunk * (element_bytes + max(4, element_bytes)) + scales),
        link_out_bytes=link,
        link_in_bytes=link,
    )


def illegal(case: Case, world_size: int) -> str | None:
    if case["m"] * case["n"] % case["block"]:
        return f"a chunk of {case['m']} x {case['n']} elements is not a multiple of the block size {case['block']}"
    return None


PROBLEM = Problem(
    title="Dequantise block-scaled FP8 chunks, then exchange them all to all",
    family="tensor",
    source="DeepSeek-V3",
    tags=("fp8", "all_to_all"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024, "block": 128},
        # DeepSeek-V3's hidden size, 2048 tokens for each peer.
        "large": {"m": 2048, "n": 7168, "block": 128},
        # Blocks that go over the ends of rows.
        "odd": {"m": 48, "n": 517, "block": 48},
        "tiny": {"m": 6, "n": 10, "block": 12},
    },
    tolerance="rounding",
    illegal=illegal,
)
