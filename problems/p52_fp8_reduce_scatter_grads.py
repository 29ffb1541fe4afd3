"""Reduce-scatter of gradients, each rounded to float8 first, with a scale that follows the last calls' magnitudes.

Sharded training (FSDP) with Transformer Engine's delayed scaling. Here the rounding is done but the run's dtype is
sent: codes and a scale per rank say as much in fewer bytes.
"""

import torch
import torch.distributed as dist

from problems.sharded import fp8_arguments, fp8_edges, fp8_work
from problems.spec import Arguments, Case, Problem, RankContext, Work

# torch 2.13 renamed the call and warns on every use of the old name; earlier versions know only that.
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

E4M3_MAX = 448.0


def updated(amax_history: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The history without its oldest entry and with the largest magnitude of `x` as its newest."""
    return torch.cat([amax_history[1:], x.abs().amax().to(amax_history.dtype).reshape(1)])


def rounded(x: torch.Tensor, history: torch.Tensor) -> torch.Tensor:
    """What float8 (e4m3) makes of `x` if the history's largest entry is scaled to float8's largest number."""
    wide = torch.promote_types(x.dtype, torch.float32)
    scale = history.max().to(wide).clamp_min(1e-12) / E4M3_MAX
    return ((x.to(wide) / scale).to(torch.float8_e4m3fn).to(wide) * scale).to(x.dtype)


def reference(flat_grads: torch.Tensor, amax_history: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`flat_grads`: (W * P,), W = number of ranks, the run's dtype, another one on every rank; ranks differ in scale.
    `amax_history`: (16,), the same dtype, another one on every rank: largest magnitudes of this rank's former
    gradients, oldest first, none negative.

    Returns two tensors of the dtype of `flat_grads`: (P,), block r of the mean over ranks of what float8 makes of each
    rank's gradient with that rank's own scale, on rank r; and (16,), this rank's updated history.
    """
    world_size = dist.get_world_size()
    history = updated(amax_history, flat_grads)
    shard = flat_grads.new_empty(flat_grads.numel() // world_size)
    reduce_scatter(shard, rounded(flat_grads, history))
    return shard.div_(world_size), history


def inputs(case: Case, ctx: RankContext) -> Arguments:
    return fp8_arguments(case, ctx, ctx.world_size * case["p"])


def unsure(
    oracle: tuple[torch.Tensor, torch.Tensor], flat_grads: torch.Tensor, amax_history: torch.Tensor
) -> tuple[torch.Tensor, None]:
    edges = fp8_edges(flat_grads, updated(amax_history, flat_grads)).to(torch.uint8)
    dist.all_reduce(edges, op=dist.ReduceOp.MAX)
    return edges.view(dist.get_world_size(), -1)[dist.get_rank()].bool(), None


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    p = case["p"]
    # A byte leaves for each element of another rank's block. The others' bytes arrive, or their sum if that is smaller.
    return fp8_work(world_size * p, p, element_bytes, (world_size - 1) * p, p * min(world_size - 1, element_bytes))


PROBLEM = Problem(
    title="Mean reduce-scatter of gradients rounded to float8 with delayed scaling",
    family="fsdp_zero",
    source="Transformer Engine",
    tags=("reduce_scatter", "fp8"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"p": 4096},
        "default": {"p": 4096},
        # One layer of Llama 3 8B (218 million parameters) over 8 ranks.
        "large": {"p": 27264000},
        "odd": {"p": 10007},
        "tiny": {"p": 67},
    },
    tolerance="rounding",
    repair="Published histories are constant and below every gradient, so shifting them or taking their largest "
    "entry goes unseen. In `default` older entries decide the scale on some ranks, and the one that drops out is the "
    "largest.",
    unsure=unsure,
)
