"""Row-parallel linear layer whose summed output stays sharded: rank r keeps row block r.

What tensor parallelism with sequence parallelism does instead of GEMM + all-reduce (Megatron style).
"""

import torch
import torch.distributed as dist

from problems.shared import rows, uneven_rows
from problems.spec import Arguments, Case, Problem, RankContext, Work

# torch 2.13 renamed the call and warns on every use of the old name; earlier versions know only that.
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def reference(A_local: torch.Tensor, B_local: torch.Tensor) -> torch.Tensor:
    C = A_local @ B_local
    block = C.new_empty(C.shape[0] // dist.get_world_size(), C.shape[1])
    reduce_scatter(block, C)
    return block


def inputs(case: Case, ctx: RankContext) -> Arguments:
    m, n, k = rows(case, ctx.world_size), case["n"], case["k"] // ctx.world_size
    # Unit-scale outputs, so that a flat absolute tolerance such as PKB's means something.
    return ctx.randn(m, k) * (k * ctx.world_size) ** -0.5, ctx.randn(k, n)


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    m, n, k = rows(case, world_size), case["n"], case["k"] // world_size
    block, others = m // world_size, world_size - 1
    # A rank may send products (foreign blocks leave, one sum arrives if the switch adds) or, where that is less,
    # operands: each peer needs its own row block of A, and all of them the same B, which the fabric may multicast.
    out_elements = min(others * block * n, others * block * k + k * n) if others else 0
    in_elements = min(block * n, others * (block * k + k * n))
    return Work(
        flops=2 * m * n * k + others * block * n,
        hbm_bytes=(m * k + k * n + block * n) * element_bytes,
        link_out_bytes=out_elements * element_bytes,
        link_in_bytes=in_elements * element_bytes,
    )


def illegal(case: Case, world_size: int) -> str | None:
    if case["k"] < world_size:
        return f"k={case['k']} leaves nothing to multiply on each of {world_size} ranks"
    return uneven_rows(case, world_size)


PROBLEM = Problem(
    title="Row-parallel linear layer with row-sharded output",
    family="tensor",
    source="Megatron-LM",
    tags=("gemm", "reduce_scatter"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024, "k": 512},
        # Down projection of Llama 3 70B (28672 to 8192), 2048 tokens of the sequence kept by each rank.
        "large": {"m_per_rank": 2048, "n": 8192, "k": 28672},
        "odd": {"m_per_rank": 129, "n": 517, "k": 509},
        "tiny": {"m_per_rank": 5, "n": 40, "k": 26},
    },
    tolerance="rounding",
    illegal=illegal,
)
