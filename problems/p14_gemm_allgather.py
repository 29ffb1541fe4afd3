"""Column-parallel linear layer with gathered output: each rank computes its block of columns, then all ranks get all.

How tensor-parallel inference computes logits (Megatron style): hidden states are replicated, the vocabulary is sharded.
"""

import torch
import torch.distributed as dist

from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """A: (M, K), the same on every rank; only in case `pkb`, as published, each rank has its own. B: (K, N/W), this
    rank's columns.

    Both in the run's dtype. Returns (M, N) in the run's dtype, the same on every rank: column block s is the product
    A @ B of rank s, with W blocks in rank order.
    """
    C_local = A @ B
    blocks = [torch.empty_like(C_local) for _ in range(dist.get_world_size())]
    dist.all_gather(blocks, C_local)
    return torch.cat(blocks, dim=1)


def columns(case: Case, world_size: int) -> int:
    """On each rank."""
    return case["n"] // world_size if "n" in case.sizes else case["n_per_rank"]


def inputs(case: Case, ctx: RankContext) -> Arguments:
    m, n, k = case["m"], columns(case, ctx.world_size), case["k"]
    a = (ctx if case.name == "pkb" else ctx.shared()).randn(m, k)
    # Unit-scale outputs, so that a flat absolute tolerance such as PKB's means something.
    return a, ctx.randn(k, n, dtype=ctx.wide).mul_(k**-0.5).to(ctx.dtype)


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    m, n, k = case["m"], columns(case, world_size), case["k"]
    # A rank may send its product or, where that is less, what it is made of. Once, if the fabric multicasts.
    operands = k * n + (m * k if case.name == "pkb" else 0)
    sent, others = min(m * n, operands), world_size - 1
    return Work(
        flops=2 * m * n * k,
        hbm_bytes=(m * k + k * n + m * n * world_size) * element_bytes,
        link_out_bytes=(sent if others else 0) * element_bytes,
        link_in_bytes=others * sent * element_bytes,
    )


def illegal(case: Case, world_size: int) -> str | None:
    if "n" in case.sizes and case["n"] % world_size:
        return f"n={case['n']} does not divide evenly over {world_size} ranks"
    return None


PROBLEM = Problem(
    title="Column-parallel linear layer: GEMM, then gather the columns",
    family="tensor",
    source="Megatron-LM",
    tags=("gemm", "all_gather"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024, "k": 512},
        "default": {"m": 1024, "n": 1024, "k": 512},
        # Logits of Llama 3 70B: 1024 sequences being decoded, vocabulary of 128256.
        "large": {"m": 1024, "n": 128256, "k": 8192},
        "odd": {"m": 1031, "n_per_rank": 67, "k": 509},
        "tiny": {"m": 14, "n_per_rank": 10, "k": 24},
    },
    tolerance="rounding",
    repair="As published every rank has an A of its own, so that the columns belong to products of different matrices. "
    "Here A is replicated, as in a column-parallel layer.",
    illegal=illegal,
)
