"""Newton-Schulz iteration of the Muon optimizer: the orthogonal matrix nearest to a momentum sharded across ranks.

Tensor-parallel training with Muon (NVIDIA's Emerging-Optimizers, Megatron-LM).
"""

import torch
import torch.distributed as dist

from problems.sharded import up
from problems.spec import Arguments, Case, Problem, RankContext, Work

COEFFICIENTS = {
    "simple": [(3.4445, -4.7750, 2.0315)],
    "quintic": [
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ],
    "polar_express": [
        (8.2051, -22.9019, 16.4607),
        (4.0664, -2.8612, 0.5184),
        (3.9096, -2.8234, 0.5250),
        (3.2856, -2.4647, 0.5074),
        (2.2779, -1.6447, 0.4162),
        (1.8726, -1.2307, 0.3585),
        (1.8564, -1.2132, 0.3568),
        (1.8750, -1.2500, 0.3750),
    ],
    "aol": [
        (4.0098, -7.0585, 2.4635),
        (3.4585, -5.5479, 2.5959),
        (2.7573, -3.2939, 1.4254),
        (2.7215, -3.0494, 1.3169),
    ],
}


def reference(
    x: torch.Tensor,
    steps: int = 5,
    coefficient_type: str = "quintic",
    partition_dim: int = 1,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """`x`: this rank's part of a matrix, in the run's dtype. `partition_dim` 1: (m, n / W), W = number of ranks, some
    columns of the matrix, in rank order; 0: (n / W, m), some rows. Parts are of one size; m is whole on every rank.
    `steps`: a multiple of the length of the table. `coefficient_type`: a table of COEFFICIENTS; step s uses entry s
    modulo its length. Numbers are the same on every rank. `group`: None for all ranks.

    Returns the same part of the result, in shape and dtype of `x`. With X the whole matrix (m, n), transposed for
    `partition_dim` 0, over its Frobenius norm (1e-7 at least): in each step A = X X', X = a X + (b A + c A A) X. All
    that in float32 at least.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    X = (x if partition_dim == 1 else x.T).to(wide)
    squares = X.square().sum()
    dist.all_reduce(squares, group=group)
    X = X / squares.sqrt().clamp_min(1e-7)
    table = COEFFICIENTS[coefficient_type]
    for step in range(steps):
        a, b, c = table[step % len(table)]
        A = X @ X.T
        dist.all_reduce(A, group=group)
        X = torch.addmm(X, torch.addmm(A, A, A, beta=b, alpha=c), X, beta=a)
    return (X if partition_dim == 1 else X.T).to(x.dtype).contiguous()


def sizes(case: Case, world_size: int) -> tuple[int, int]:
    """Of the whole axis, and of one rank's part of the other."""
    return case["m"], up(case["n"], world_size) // world_size


def inputs(case: Case, ctx: RankContext) -> Arguments:
    m, part = sizes(case, ctx.world_size)
    common = ctx.shared()
    if case.name in ("pkb", "large"):
        name, steps, partition_dim = "quintic", 5, 1
    else:
        name = ("simple", "quintic", "polar_express", "aol")[common.integer(0, 4)]
        steps, partition_dim = (5 if name == "simple" else len(COEFFICIENTS[name])), common.integer(0, 2)
    shape = (m, part) if partition_dim == 1 else (part, m)
    if case.name == "pkb":
        return ctx.randn(*shape) + 0.01 * ctx.rank, steps, name, partition_dim
    # Momenta are far from orthogonal: columns differ tenfold, and ranks twofold.
    scale = 10 ** ctx.uniform(part, low=-0.5, high=0.5, dtype=torch.float32)
    scale *= ctx.uniform(1, low=0.7, high=1.4, dtype=torch.float32)
    x = ctx.randn(m, part, dtype=torch.float32) * scale
    return (x if partition_dim == 1 else x.T).contiguous().to(ctx.dtype), steps, name, partition_dim


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    m, part = sizes(case, world_size)
    steps = 5 if case.name in ("pkb", "large") else 4
    # The first Gram matrix and the last product are as they must be. Between them the Gram matrix may be iterated
    # instead of X: three symmetric products per step and one for A A, shared by the ranks.
    square, own = m * m * part, m**3 / world_size
    # Half of a Gram matrix, or X itself where that is smaller; all else follows from it.
    half = m * (m + 1) // 2
    return Work(
        flops=3 * square + steps * own + (steps - 1) * min(3 * own, 3 * square),
        hbm_bytes=2 * m * part * element_bytes,
        link_out_bytes=min(half, m * part) * element_bytes if world_size > 1 else 0,
        link_in_bytes=min(half, (world_size - 1) * m * part) * element_bytes,
    )


PROBLEM = Problem(
    title="Newton-Schulz orthogonalisation of a sharded matrix (Muon)",
    family="tensor",
    source="Emerging-Optimizers",
    tags=("gemm", "all_reduce", "optimizer"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 512, "n": 512},
        # Gate projection of Llama 3 8B.
        "large": {"m": 4096, "n": 14336},
        "odd": {"m": 127, "n": 331},
        "tiny": {"m": 12, "n": 40},
    },
    tolerance="rounding",
)
