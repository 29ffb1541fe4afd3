"""Linear layer whose input is sharded along the inner axis: gather the shards, then multiply.

A column-parallel layer (every rank holds the weights of its own output columns) after a layer that left its output
sharded by features. Kernels that hide such a gather behind the product: Flux, Triton-distributed, ParallelKittens.
"""

import torch
import torch.distributed as dist

from problems.layers import gathered_product_inputs, gathered_product_work, uneven_inner
from problems.spec import Problem


def reference(A_local: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """A_local: (M, K/W), this rank's columns of A; rank s has columns s*K/W to (s+1)*K/W - 1 (W ranks; W divides K).

    B: (K, N), this rank's own weights, another matrix on every rank. Both in the run's dtype. Returns A @ B: (M, N) in
    the run's dtype, of the whole A (M, K) and this rank's B.
    """
    shards = [torch.empty_like(A_local) for _ in range(dist.get_world_size())]
    dist.all_gather(shards, A_local)
    return torch.cat(shards, dim=1) @ B


PROBLEM = Problem(
    title="Gather the inner-axis shards of A, then multiply",
    family="tensor",
    source="Flux",
    tags=("gemm", "all_gather"),
    reference=reference,
    inputs=gathered_product_inputs,
    work=gathered_product_work,
    cases={
        "pkb": {"m": 1024, "n": 1024, "k": 512},
        # Queries, keys and values of GPT-3 175B (12288 to 3 x 12288) over 8 ranks, 16384 tokens.
        "large": {"m": 16384, "n": 4608, "k": 12288},
        "odd": {"m": 1031, "n": 517, "k_per_rank": 61},
        "tiny": {"m": 14, "n": 40, "k_per_rank": 5},
    },
    tolerance="rounding",
    illegal=uneven_inner,
)
