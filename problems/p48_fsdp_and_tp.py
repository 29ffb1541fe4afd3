"""SwiGLU feed-forward layer whose weights are sharded twice: over the ranks that share the batch (FSDP) along one axis,
over the ranks that share a token's work (tensor parallel) along the other.

The two-dimensional mesh of TorchTitan and Megatron-LM.
"""

import math
from typing import Any

import torch
import torch.distributed as dist

from problems.sharded import up
from problems.spec import Arguments, Case, Problem, RankContext, Work

# torch 2.13 renamed the call and warns on every use of the old name; earlier versions know only that.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

# Making groups takes far longer than the layer: each mesh is made once.
meshes: dict[Any, tuple[Any, Any]] = {}


def mesh(n_tp: int, n_fsdp: int) -> tuple[Any, Any]:
    """This rank's two groups: those with its part of the batch, and those with its part of the inner axis."""
    rank = dist.get_rank()
    key = dist.group.WORLD, rank, n_tp, n_fsdp
    if key not in meshes:
        # Every rank makes all groups, in the same order.
        tp = [dist.new_group([f * n_tp + t for t in range(n_tp)]) for f in range(n_fsdp)]
        fsdp = [dist.new_group([f * n_tp + t for f in range(n_fsdp)]) for t in range(n_tp)]
        meshes[key] = tp[rank // n_tp], fsdp[rank % n_tp]
    return meshes[key]


def gathered(shard: torch.Tensor, group: Any, parts: int) -> torch.Tensor:
    """The group's shards stacked along rows."""
    whole = shard.new_empty(parts * shard.shape[0], shard.shape[1])
    all_gather(whole, shard, group=group)
    return whole


def reference(
    x_local: torch.Tensor,
    W1_shard: torch.Tensor,
    W2_shard: torch.Tensor,
    W3_shard: torch.Tensor,
    n_tp: int,
    n_fsdp: int,
) -> torch.Tensor:
    """Rank r = f * n_tp + t has place f in 0..n_fsdp-1 and t in 0..n_tp-1; n_tp * n_fsdp is the number of ranks, and
    n_tp may be 1. Tensors are of the run's dtype.

    `x_local`: (B / n_fsdp, D), rows of the batch: block f, the same for all t. `W1_shard`, `W2_shard`:
    (D / n_fsdp, F / n_tp), block (f, t) of two matrices (D, F). `W3_shard`: (F / n_tp, D / n_fsdp), block (t, f) of a
    matrix (F, D).

    Returns (B / n_fsdp, D) in the same dtype, the same for all t: (silu(x W1) * (x W2)) W3 of block f.
    """
    tp, fsdp = mesh(n_tp, n_fsdp)
    W1, W2 = gathered(W1_shard, fsdp, n_fsdp), gathered(W2_shard, fsdp, n_fsdp)
    inner, part = W3_shard.shape
    W3 = gathered(W3_shard, fsdp, n_fsdp).view(n_fsdp, inner, part).transpose(0, 1).reshape(inner, -1)
    out = (torch.nn.functional.silu(x_local @ W1) * (x_local @ W2)) @ W3
    if n_tp > 1:
        dist.all_reduce(out, group=tp)
    return out


def sizes(case: Case, world_size: int) -> tuple[int, int, int, int, int]:
    """n_tp, n_fsdp, rows of one rank, D and F, rounded up to what divides."""
    n_tp = next((t for t in range(2, world_size // 2 + 1) if world_size % t == 0), 1)
    n_fsdp = world_size // n_tp
    d, f = up(case["d"], math.lcm(n_tp, n_fsdp)), up(case["f"], n_tp)
    return n_tp, n_fsdp, up(case["b"], n_fsdp) // n_fsdp, d, f


def inputs(case: Case, ctx: RankContext) -> Arguments:
    n_tp, n_fsdp, rows, d, f = sizes(case, ctx.world_size)
    # Unit-scale outputs. Rows are drawn by those that share them alike, weights by everybody on his own.
    x = ctx.stream(f"rows {ctx.rank // n_tp}").randn(rows, d)
    W1, W2 = (ctx.randn(d // n_fsdp, f // n_tp) * d**-0.5 for _ in range(2))
    W3 = ctx.randn(f // n_tp, d // n_fsdp) * (1.7 * f**-0.5)
    return x, W1, W2, W3, n_tp, n_fsdp


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    n_tp, n_fsdp, rows, d, f = sizes(case, world_size)
    shard, inner = (d // n_fsdp) * (f // n_tp), rows * (f // n_tp)
    # A shard goes to all that lack it, by multicast; or what is computed with it goes instead, where that is smaller.
    others = n_fsdp - 1
    out_elements = (2 * min(shard, others * inner) + min(shard, inner)) if others else 0
    in_elements = 2 * min(others * shard, inner) + min(others * shard, rows * d)
    # Partial outputs: one out, and one sum in if the switch adds.
    partial = rows * d if n_tp > 1 else 0
    return Work(
        flops=6 * inner * d + partial * (n_tp - 1) / n_tp,
        hbm_bytes=(2 * rows * d + 3 * shard) * element_bytes,
        link_out_bytes=(out_elements + partial) * element_bytes,
        link_in_bytes=(in_elements + partial) * element_bytes,
    )


PROBLEM = Problem(
    title="SwiGLU layer with weights sharded over a two-dimensional mesh",
    family="fsdp_zero",
    source="TorchTitan",
    tags=("gemm", "all_gather", "all_reduce", "subgroups"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"b": 2048, "d": 256, "f": 1024},
        # Llama 3 8B, 16384 tokens in all.
        "large": {"b": 16384, "d": 4096, "f": 14336},
        "odd": {"b": 211, "d": 67, "f": 131},
        "tiny": {"b": 14, "d": 10, "f": 20},
    },
    tolerance="rounding",
)
