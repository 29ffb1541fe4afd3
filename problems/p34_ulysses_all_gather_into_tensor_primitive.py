"""All-gather along the first axis: every rank receives all ranks' row blocks, one below the other in rank order.

Sequence-parallel training puts a sharded sequence together this way, without a new axis.
"""

import torch
import torch.distributed as dist

from problems.spec import Arguments, Case, Problem, RankContext, Work

# torch 2.13 renamed the call and warns on every use of the old name; earlier versions know only that.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def reference(x: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """x: (m, n), the run's dtype, the same shape on all ranks of the group (None: all ranks), values of its own.

    Returns (group size * m, n), the same on all ranks: rank 0's rows first. A new tensor.
    """
    gathered = x.new_empty(dist.get_world_size(group) * x.shape[0], *x.shape[1:])
    all_gather(gathered, x, group=group)
    return gathered


def inputs(case: Case, ctx: RankContext) -> Arguments:
    return (ctx.randn(case["m"], case["n"]),)


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    matrix = case["m"] * case["n"] * element_bytes
    return Work(
        hbm_bytes=(1 + world_size) * matrix,
        # With multicast the own matrix leaves once; the others still arrive one by one.
        link_out_bytes=matrix if world_size > 1 else 0,
        link_in_bytes=(world_size - 1) * matrix,
    )


PROBLEM = Problem(
    title="Collect all ranks' row blocks below one another",
    family="context",
    source="VeOmni",
    tags=("all_gather", "sequence_parallel"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024},
        # Hidden states of Qwen2.5-VL 7B (3584), 128k tokens on 8 ranks.
        "large": {"m": 16384, "n": 3584},
        "odd": {"m": 1031, "n": 517},
        "tiny": {"m": 14, "n": 40},
    },
    tolerance="exact",
)
