"""Gradients of a layer norm's scale and shift where the rows (tokens) are sharded: column sums over all ranks' rows.

The weight and bias part of a LayerNorm backward pass under sequence or data parallelism (Megatron style).
"""

import torch
import torch.distributed as dist

from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(X_hat: torch.Tensor, dY: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """X_hat: (M, N), this rank's normalised activations. dY: (M, N), the gradient of the layer's output in these rows.

    Both in the run's dtype, different on every rank. Returns (d_gamma, d_beta), both (N,) in the run's dtype and the
    same on every rank: over all rows of all ranks the sum of dY * X_hat, and the sum of dY.
    """
    d_beta = dY.sum(dim=0)
    dist.all_reduce(d_beta)
    d_gamma = (dY * X_hat).sum(dim=0)
    dist.all_reduce(d_gamma)
    return d_gamma, d_beta


def inputs(case: Case, ctx: RankContext) -> Arguments:
    m, n = case["m"], case["n"]
    tokens, common = m * ctx.world_size, ctx.shared()
    # Channels of different strength, normalised as a layer norm does.
    strength = 10 ** common.uniform(n, low=-0.5, high=0.5, dtype=torch.float32)
    x = torch.nn.functional.layer_norm(ctx.randn(m, n, dtype=torch.float32) * strength, (n,)).to(ctx.dtype)
    # As of a loss that is averaged over tokens: noise that adds up to order one over all of them, and a part that is
    # the same in each, so that no gradient is noise alone.
    gamma, beta = (common.randn(n, dtype=torch.float32) for _ in range(2))
    noise = ctx.randn(m, n, dtype=torch.float32)
    return x, (noise * tokens**-0.5 + (beta + gamma * x) / tokens).to(ctx.dtype)


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    m, n = case["m"], case["n"]
    # Two vectors leave; if the switch adds, two arrive.
    link = 2 * n * element_bytes if world_size > 1 else 0
    return Work(
        flops=3 * m * n,
        hbm_bytes=(2 * m * n + 2 * n) * element_bytes,
        link_out_bytes=link,
        link_in_bytes=link,
    )


PROBLEM = Problem(
    title="Gradients of a norm's scale and shift, summed over row shards",
    family="tensor",
    source="Megatron-LM",
    tags=("norm", "all_reduce", "backward"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024},
        # GPT-3 175B's hidden size, 16384 tokens on each rank.
        "large": {"m": 16384, "n": 12288},
        "odd": {"m": 1031, "n": 517},
        "tiny": {"m": 14, "n": 40},
    },
    tolerance="rounding",
)
