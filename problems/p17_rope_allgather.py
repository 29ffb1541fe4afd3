"""Rotary embedding of queries and keys that are sharded along the sequence, then gathered along it.

Rotate-half form (Hugging Face, Llama); each rank rotates its positions, then all ranks get the whole sequence.
"""

import torch
import torch.distributed as dist

from problems.spec import Arguments, Case, Problem, RankContext, Work


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos[:, :, None] + turned * sin[:, :, None]


def gathered(x: torch.Tensor) -> torch.Tensor:
    pieces = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(pieces, x)
    return torch.cat(pieces, dim=1)


def reference(
    q_local: torch.Tensor, k_local: torch.Tensor, cos_local: torch.Tensor, sin_local: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """q_local, k_local: (B, S, H, D), this rank's S positions of B sequences, H heads, D channels; D is even.

    cos_local, sin_local: (B, S, D), the same for all heads; any numbers: the two halves of the channels need not agree,
    nor need cos**2 + sin**2 be 1. All in the run's dtype, different on every rank. With h = D/2 and x = q or k,
    z[d] = x[d] * cos[d] - x[d + h] * sin[d] for d < h and x[d] * cos[d] + x[d - h] * sin[d] for d >= h.
    Returns (z of q, z of k), each (B, W*S, H, D) in the run's dtype: all ranks' positions in rank order, on every rank.
    """
    return gathered(rotated(q_local, cos_local, sin_local)), gathered(rotated(k_local, cos_local, sin_local))


def shape(case: Case, world_size: int) -> tuple[int, int, int, int]:
    """(B, S, H, D) on each rank; as published S times the world size need not be the sequence's length."""
    s = max(1, case["s"] // world_size) if "s" in case.sizes else case["s_per_rank"]
    return case["b"], s, case["heads"], case["dim"]


def inputs(case: Case, ctx: RankContext) -> Arguments:
    b, s, heads, dim = shape(case, ctx.world_size)
    # Not cosines, as published: of slowly turning channels those are 1, with sines of 0, and would show nothing.
    return (
        ctx.randn(b, s, heads, dim),
        ctx.randn(b, s, heads, dim),
        ctx.randn(b, s, dim),
        ctx.randn(b, s, dim),
    )


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    b, s, heads, dim = shape(case, world_size)
    both = 2 * b * s * heads * dim
    return Work(
        flops=3 * both,
        hbm_bytes=(both + 2 * b * s * dim + world_size * both) * element_bytes,
        # With multicast a rank's part leaves once; the others still arrive one by one.
        link_out_bytes=both * element_bytes if world_size > 1 else 0,
        link_in_bytes=(world_size - 1) * both * element_bytes,
    )


PROBLEM = Problem(
    title="Rotary embedding of sequence shards, then gather the sequence",
    family="sequence",
    source="Hugging Face Transformers",
    tags=("rope", "all_gather"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"b": 16, "s": 16, "heads": 8, "dim": 64},
        # Llama 2 7B's 32 heads of 128 channels, 4096 positions on each rank: 32768 on 8.
        "large": {"b": 1, "s_per_rank": 4096, "heads": 32, "dim": 128},
        "odd": {"b": 3, "s_per_rank": 67, "heads": 5, "dim": 46},
        "tiny": {"b": 2, "s_per_rank": 3, "heads": 2, "dim": 6},
    },
    tolerance="rounding",
)
