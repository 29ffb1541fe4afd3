"""All-gather of parameter shards, each rounded to float8 first, with a scale that follows the last calls' magnitudes.

Sharded training (FSDP) with Transformer Engine's delayed scaling. Here the rounding is done but the run's dtype is
sent: codes and a scale per rank say as much in fewer bytes.
"""

import torch
import torch.distributed as dist

from problems.sharded import fp8_arguments, fp8_edges, fp8_work
from problems.spec import Arguments, Case, Problem, RankContext, Work

# torch 2.13 renamed the call and warns on every use of the old name; earlier versions know only that.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

E4M3_MAX = 448.0


def updated(amax_history: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The history without its oldest entry and with the largest magnitude of `x` as its newest."""
    return torch.cat([amax_history[1:], x.abs().amax().to(amax_history.dtype).reshape(1)])


def rounded(x: torch.Tensor, history: torch.Tensor) -> torch.Tensor:
    """What float8 (e4m3) makes of `x` if the history's largest entry is scaled to float8's largest number."""
    wide = torch.promote_types(x.dtype, torch.float32)
    scale = history.max().to(wide).clamp_min(1e-12) / E4M3_MAX
    return ((x.to(wide) / scale).to(torch.float8_e4m3fn).to(wide) * scale).to(x.dtype)


def reference(flat_param_shard: torch.Tensor, amax_history: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`flat_param_shard`: (P,), the run's dtype, another one on every rank; ranks differ in scale.
    `amax_history`: (16,), the same dtype, another one on every rank: largest magnitudes that this rank's shard once
    had, oldest first, none negative.

    Returns two tensors of the dtype of `flat_param_shard`: (W * P,), W = number of ranks, the same on every rank: what
    float8 makes of each shard with its own rank's scale, in rank order; and (16,), this rank's updated history.
    """
    history = updated(amax_history, flat_param_shard)
    full = flat_param_shard.new_empty(dist.get_world_size() * flat_param_shard.numel())
    all_gather(full, rounded(flat_param_shard, history))
    return full, history


def inputs(case: Case, ctx: RankContext) -> Arguments:
    return fp8_arguments(case, ctx, case["p"])


def unsure(
    oracle: tuple[torch.Tensor, torch.Tensor], flat_param_shard: torch.Tensor, amax_history: torch.Tensor
) -> tuple[torch.Tensor, None]:
    edges = fp8_edges(flat_param_shard, updated(amax_history, flat_param_shard)).to(torch.uint8)
    everywhere = edges.new_empty(dist.get_world_size() * edges.numel())
    all_gather(everywhere, edges)
    return everywhere.bool(), None


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    p = case["p"]
    # A byte per element; with multicast the own ones leave once.
    return fp8_work(p, world_size * p, element_bytes, p if world_size > 1 else 0, (world_size - 1) * p)


PROBLEM = Problem(
    title="All-gather of parameters rounded to float8 with delayed scaling",
    family="fsdp_zero",
    source="Transformer Engine",
    tags=("all_gather", "fp8"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"p": 4096},
        "default": {"p": 4096},
        # One layer of Llama 3 8B (218 million parameters) over 8 ranks.
        "large": {"p": 27264000},
        "odd": {"p": 10007},
        "tiny": {"p": 167},
    },
    tolerance="rounding",
    repair="Published histories are constant and below every parameter, so shifting them or taking their largest "
    "entry goes unseen. In `default` older entries decide the scale on some ranks, and the one that drops out is the "
    "largest.",
    unsure=unsure,
)
