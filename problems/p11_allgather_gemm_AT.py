"""Linear layer whose input is sharded along the inner axis: gather the shards, then multiply, all in transposed form.

A column-parallel layer (every rank holds the weights of its own output columns) after a layer that left its output
sharded by features. Kernels that hide such a gather behind the product: Flux, Triton-distributed, ParallelKittens.
"""

import torch
import torch.distributed as dist

from problems.layers import gathered_product_inputs, gathered_product_work, uneven_inner
from problems.spec import Problem

# torch 2.13 renamed the call and warns on every use of the old name; earlier versions know only that.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def reference(A_local: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """A_local: (M, K/W), this rank's columns of A; rank s has columns s*K/W to (s+1)*K/W - 1 (W ranks; W divides K).

    B: (K, N), this rank's own weights, another matrix on every rank. Both in the run's dtype. Returns A @ B: (M, N) in
    the run's dtype, contiguous, of the whole A (M, K) and this rank's B.
    """
    m, k_local = A_local.shape
    A_T = A_local.new_empty(k_local * dist.get_world_size(), m)
    # Transposed, the shards are row blocks and lie in the gathered matrix as they arrive.
    all_gather(A_T, A_local.t().contiguous())
    return A_T.t() @ B


# ruff: noqa: N999
# The name as published.
PROBLEM = Problem(
    title="Gather the inner-axis shards of A, transposed, then multiply",
    family="tensor",
    source="Flux",
    tags=("gemm", "all_gather"),
    reference=reference,
    inputs=gathered_product_inputs,
    work=gathered_product_work,
    cases={
        "pkb": {"m": 1024, "n": 1024, "k": 512},
        # Gate and up projection of Llama 3 70B (8192 to 2 x 28672) over 8 ranks, 8192 tokens of prefill.
        "large": {"m": 8192, "n": 7168, "k": 8192},
        "odd": {"m": 1031, "n": 517, "k_per_rank": 61},
        "tiny": {"m": 14, "n": 40, "k_per_rank": 5},
    },
    tolerance="rounding",
    illegal=uneven_inner,
)
