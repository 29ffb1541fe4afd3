"""RMS normalisation over a hidden axis that is sharded across ranks: the ranks add up each row's sum of squares.

Tensor-parallel inference normalises queries and keys this way where the norm spans all heads (MiniMax in vLLM).
"""

import torch
import torch.distributed as dist

from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(local_hidden_states: torch.Tensor, local_weight: torch.Tensor, variance_epsilon: float) -> torch.Tensor:
    x = local_hidden_states.to(torch.promote_types(local_hidden_states.dtype, torch.float32))
    squares = x.square().sum(dim=-1, keepdim=True)
    dist.all_reduce(squares)
    variance = squares / (x.shape[-1] * dist.get_world_size())
    normalised = x * torch.rsqrt(variance + variance_epsilon)
    return local_weight * normalised.to(local_hidden_states.dtype)


def inputs(case: Case, ctx: RankContext) -> Arguments:
    m, n = case["m"], case["n"]
    common = ctx.shared()
    # Rows of very different size, below and above sqrt(epsilon), so that neither the norm nor epsilon can be dropped;
    # each rank scales its part of a row again, so that the local variance is not the global one.
    row_scale = 10 ** common.uniform(m, 1, low=-4, high=2, dtype=torch.float32)
    rank_scale = 10 ** ctx.uniform(m, 1, low=-0.5, high=0.5, dtype=torch.float32)
    hidden = ctx.randn(m, n, dtype=torch.float32) * row_scale * rank_scale
    hidden[common.integer(0, m)] = 0  # one row of zeros on all ranks, where only epsilon prevents 0/0
    return hidden.to(ctx.dtype), ctx.randn(n), 1e-5


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    m, n = case["m"], case["n"]
    # One number per row leaves and one arrives if the switch adds; the reference sends float32, but a candidate might
    # stay accurate enough with the run's dtype.
    link = m * element_bytes if world_size > 1 else 0
    return Work(
        # Square, add, scale, weigh.
        flops=4 * m * n,
        # One pass: a row can stay on chip between its sum and its scaling.
        hbm_bytes=(2 * m * n + n) * element_bytes,
        link_out_bytes=link,
        link_in_bytes=link,
    )


PROBLEM = Problem(
    title="RMS norm over a hidden axis sharded across ranks",
    family="tensor",
    source="vLLM",
    tags=("norm", "all_reduce"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024},
        # 128k tokens of prefill at hidden size 8192, sharded over 8 ranks.
        "large": {"m": 131072, "n": 1024},
        "odd": {"m": 1031, "n": 517},
        "tiny": {"m": 14, "n": 40},
    },
    tolerance="rounding",
)
