"""Row-parallel linear layer: each rank multiplies its share of the inner axis, then the ranks sum the products.

The second matrix product of every tensor-parallel attention and MLP block (Megatron style).
"""

import torch
import torch.distributed as dist

from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(A_local: torch.Tensor, B_local: torch.Tensor) -> torch.Tensor:
    C = A_local @ B_local
    dist.all_reduce(C)
    return C


def inputs(case: Case, ctx: RankContext) -> Arguments:
    m, n, k = case["m"], case["n"], case["k"]
    # Unit-scale outputs, so that a flat absolute tolerance such as PKB's means something.
    return ctx.randn(m, k) * (k * ctx.world_size) ** -0.5, ctx.randn(k, n)


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    m, n, k = case["m"], case["n"], case["k"]
    product, operands = m * n, m * k + k * n
    # A rank may send its product (the switch adds, so one arrives) or its operands, where those are smaller.
    out_elements = min(product, operands) if world_size > 1 else 0
    in_elements = min(product, (world_size - 1) * operands)
    return Work(
        flops=2 * m * n * k + product * (world_size - 1) / world_size,
        hbm_bytes=(operands + product) * element_bytes,
        link_out_bytes=out_elements * element_bytes,
        link_in_bytes=in_elements * element_bytes,
    )


PROBLEM = Problem(
    title="Row-parallel linear layer: GEMM, then sum over ranks",
    family="tensor",
    source="Megatron-LM",
    tags=("gemm", "all_reduce"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024, "k": 512},
        # Down projection of Llama 3 70B (28672 to 8192) over 8 ranks, 8192 tokens of prefill.
        "large": {"m": 8192, "n": 8192, "k": 3584},
        "odd": {"m": 1031, "n": 517, "k": 251},
        "tiny": {"m": 14, "n": 40, "k": 24},
    },
    tolerance="rounding",
)
