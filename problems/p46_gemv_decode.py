"""Logits of the next tokens: each rank has a part of the vocabulary, and all receive all logits.

The last layer of every tensor-parallel language model at decode (vLLM, Megatron-LM).
"""

import torch
import torch.distributed as dist

from problems.spec import Arguments, Case, Problem, RankContext, Work

# torch 2.13 renamed the call and warns on every use of the old name; earlier versions know only that.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def reference(hidden_states: torch.Tensor, weight_shard: torch.Tensor, bias_shard: torch.Tensor) -> torch.Tensor:
    """`hidden_states`: (T, H), a few tokens, the same on every rank. `weight_shard`: (V / W, H) and `bias_shard`:
    (V / W,), W = number of ranks: this rank's consecutive part of the vocabulary, in rank order, all parts of one size.
    All are of the run's dtype.

    Returns (T, V) in the same dtype, the same on every rank: hidden_states @ weight.T + bias over the whole vocabulary.
    """
    logits = hidden_states @ weight_shard.T + bias_shard
    tokens, part = logits.shape
    parts = logits.new_empty(dist.get_world_size() * tokens, part)
    all_gather(parts, logits)
    return parts.view(-1, tokens, part).transpose(0, 1).reshape(tokens, -1)


def inputs(case: Case, ctx: RankContext) -> Arguments:
    tokens, hidden, part = case["tokens"], case["hidden"], case["vocab_per_rank"]
    # Unit-scale products; the bias is as large.
    return ctx.shared().randn(tokens, hidden), ctx.randn(part, hidden) * hidden**-0.5, ctx.randn(part)


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    tokens, hidden, part = case["tokens"], case["hidden"], case["vocab_per_rank"]
    own = tokens * part
    return Work(
        flops=2 * own * hidden + own,
        hbm_bytes=(part * hidden + part + tokens * hidden + world_size * own) * element_bytes,
        # With multicast the own logits leave once; the others still arrive one by one.
        link_out_bytes=own * element_bytes if world_size > 1 else 0,
        link_in_bytes=(world_size - 1) * own * element_bytes,
    )


PROBLEM = Problem(
    title="Logits of a sharded vocabulary at decode: small GEMM, then all-gather",
    family="tensor",
    source="vLLM",
    tags=("gemm", "all_gather"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"tokens": 1, "hidden": 1024, "vocab_per_rank": 1024},
        # Llama 3 70B (vocabulary 128256) over 8 ranks, 64 sequences.
        "large": {"tokens": 64, "hidden": 8192, "vocab_per_rank": 16032},
        "odd": {"tokens": 7, "hidden": 1031, "vocab_per_rank": 517},
        "tiny": {"tokens": 3, "hidden": 40, "vocab_per_rank": 22},
    },
    tolerance="rounding",
)
