"""Two-layer MLP from feature shards to row blocks: gather, GEMM, SiLU, GEMM of the own rows, reduce-scatter.

How an MLP with replicated weights goes from an input that is sharded by features to an output sharded by tokens.
"""

import torch
import torch.distributed as dist

from problems.spec import Arguments, Case, Problem, RankContext, Work

# torch 2.13 renamed the call and warns on every use of the old name; earlier versions know only that.
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def reference(x_local: torch.Tensor, W1: torch.Tensor, W2: torch.Tensor) -> torch.Tensor:
    """x_local: (M, H/W), this rank's columns of X (M, H), column blocks in rank order. W ranks; W divides M and H.

    W1: (H, F) and W2: (F, H), the same on every rank; only in case `pkb`, as published, each rank has its own.
    All in the run's dtype.
    Returns this rank's row block, rows r*M/W to (r+1)*M/W - 1 on rank r, of SiLU(X @ W1) @ W2, with this rank's W1 and
    W2: (M/W, H) in the run's dtype. SiLU(z) = z / (1 + exp(-z)).
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    shards = [torch.empty_like(x_local) for _ in range(world_size)]
    dist.all_gather(shards, x_local)
    activated = torch.nn.functional.silu(torch.cat(shards, dim=1) @ W1)
    rows = x_local.shape[0] // world_size
    own = slice(rank * rows, (rank + 1) * rows)
    partial = x_local.new_zeros(x_local.shape[0], W2.shape[1])
    torch.matmul(activated[own], W2, out=partial[own])
    block = x_local.new_empty(rows, W2.shape[1])
    reduce_scatter(block, partial)
    return block


def shape(case: Case, world_size: int) -> tuple[int, int, int]:
    """Rows and features of X, rounded up to multiples of the world size, and the inner width."""
    m, h = (-(-case[name] // world_size) * world_size for name in ("m", "h"))
    return m, h, case["f"]


def inputs(case: Case, ctx: RankContext) -> Arguments:
    m, h, f = shape(case, ctx.world_size)
    weights = ctx if case.name == "pkb" else ctx.shared()
    # Both layers' outputs are of order one, where SiLU bends; some features are far larger than others, as in life.
    strength = 10 ** ctx.uniform(h // ctx.world_size, low=-0.7, high=0.7, dtype=torch.float32)
    x = (ctx.randn(m, h // ctx.world_size, dtype=torch.float32) * (strength / strength.square().mean().sqrt())).to(
        ctx.dtype
    )
    w1 = (weights.randn(h, f, dtype=torch.float32) * h**-0.5).to(ctx.dtype)
    w2 = (weights.randn(f, h, dtype=torch.float32) * 2 * f**-0.5).to(ctx.dtype)
    return x, w1, w2


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    m, h, f = shape(case, world_size)
    rows, shard, others = m // world_size, h // world_size, world_size - 1
    # What a rank needs of the others: its own rows of their features, or what these add to its first layer (then one
    # sum arrives, if the switch adds).
    return Work(
        flops=4 * rows * h * f,
        hbm_bytes=(m * shard + 2 * h * f + rows * h) * element_bytes,
        link_out_bytes=others * rows * min(shard, f) * element_bytes,
        link_in_bytes=rows * min(others * shard, f if others else 0) * element_bytes,
    )


PROBLEM = Problem(
    title="MLP from feature shards to row blocks: gather, GEMM, SiLU, GEMM, reduce-scatter",
    family="tensor",
    source="ParallelKernelBench",
    tags=("gemm", "all_gather", "reduce_scatter"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "h": 256, "f": 512},
        "default": {"m": 1024, "h": 256, "f": 512},
        # MLP of Llama 3 8B (without its gate), 16384 tokens.
        "large": {"m": 16384, "h": 4096, "f": 14336},
        "odd": {"m": 1031, "h": 251, "f": 509},
        "tiny": {"m": 14, "h": 20, "f": 24},
    },
    tolerance="rounding",
    repair="As published every rank has weights of its own, so that each row block goes through another "
    "MLP. Here they are replicated, so that the output is that of one MLP.",
)
