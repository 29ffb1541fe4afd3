"""Reduce-scatter of activations over ranks (their mean), then RMS norm of the rows received.

How tensor-parallel inference with sharded tokens (vLLM, TensorRT-LLM) joins one block to the next.
"""

import torch
import torch.distributed as dist

from problems.spec import Arguments, Case, Problem, RankContext, Work

# torch 2.13 renamed the call and warns on every use of the old name; earlier versions know only that.
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def reference(rs_input_1d: torch.Tensor, gamma: torch.Tensor, eps: float) -> torch.Tensor:
    """`rs_input_1d`: (W * rows * H,), W = number of ranks, the run's dtype, another one on every rank; block r has rank
    r's rows. Rows differ in scale by orders of magnitude, and one may be zero on all ranks.
    `gamma`: (H,), the same dtype, the same on every rank. `eps`: positive, added to a row's mean square.

    Returns (rows, H) in the same dtype on rank r: block r of the mean over ranks, each row divided by its root mean
    square and multiplied by `gamma`.
    """
    world_size = dist.get_world_size()
    chunk = rs_input_1d.new_empty(rs_input_1d.numel() // world_size)
    reduce_scatter(chunk, rs_input_1d)
    rows = chunk.div_(world_size).view(-1, gamma.numel())
    x = rows.to(torch.promote_types(rows.dtype, torch.float32))
    variance = x.square().mean(-1, keepdim=True)
    return (x * torch.rsqrt(variance + eps) * gamma.to(x.dtype)).to(rows.dtype)


def shape(case: Case, world_size: int) -> tuple[int, int]:
    """Rows of one rank, and their length."""
    if "rows" in case.sizes:
        return case["rows"], case["hidden"]
    return max(2, max(case["m"], world_size) // max(world_size, 4)), min(max(case["n"], 32), 128)


def inputs(case: Case, ctx: RankContext) -> Arguments:
    rows, hidden = shape(case, ctx.world_size)
    count, common = ctx.world_size * rows, ctx.shared()
    gamma = common.randn(hidden)
    if case.name == "pkb":
        return ctx.randn(count * hidden), gamma, 1e-5
    # Below and above sqrt(epsilon), so that the division by W is seen as well as the norm.
    scale = 10 ** common.uniform(count, 1, low=-3.5, high=0.5, dtype=torch.float32)
    scale *= ctx.uniform(count, 1, low=0.5, high=2, dtype=torch.float32)
    scale[common.integer(0, count)] = 0
    return (ctx.randn(count, hidden, dtype=torch.float32) * scale).to(ctx.dtype).view(-1), gamma, 1e-4


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    rows, hidden = shape(case, world_size)
    block = rows * hidden
    return Work(
        # Add; divide, square, add, scale, weigh.
        flops=(world_size - 1) * block + 5 * block,
        hbm_bytes=(world_size * block + block + hidden) * element_bytes,
        # The others' blocks leave; one sum arrives if the switch adds.
        link_out_bytes=(world_size - 1) * block * element_bytes,
        link_in_bytes=block * element_bytes if world_size > 1 else 0,
    )


PROBLEM = Problem(
    title="Mean reduce-scatter of activations, then RMS norm",
    family="tensor",
    source="vLLM",
    tags=("reduce_scatter", "norm"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024},
        "default": {"m": 1024, "n": 1024},
        # Llama 3 70B: 16384 tokens of prefill over 8 ranks.
        "large": {"rows": 2048, "hidden": 8192},
        "odd": {"rows": 131, "hidden": 517},
        "tiny": {"rows": 5, "hidden": 40},
    },
    tolerance="rounding",
    repair="Where every row's mean square is far above epsilon, as published, a norm undoes any factor: the sum in "
    "place of the mean gives the same. In `default` rows lie on both sides of epsilon, and one is zero.",
)
