"""Sinkhorn-Knopp normalisation of a teacher's prototype scores, with samples sharded across ranks.

Self-supervised training (DINOv2's loss on masked patches) turns scores into targets that use all prototypes alike.
"""

import torch
import torch.distributed as dist

from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(
    teacher_output: torch.Tensor,
    teacher_temp: float,
    n_masked_patches_tensor: torch.Tensor,
    n_iterations: int = 3,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """`teacher_output`: (samples, prototypes) float32, the scores of this rank's samples (ranks may have
    different numbers). `teacher_temp`: scores are divided by it; exp of the result does not overflow.
    `n_masked_patches_tensor`: (1,) int64, this rank's number of samples. `group`: None for all ranks.

    Returns (samples, prototypes) float32; each row sums to 1.
    """
    Q = (teacher_output / teacher_temp).to(torch.promote_types(teacher_output.dtype, torch.float32)).exp_()
    samples, prototypes = n_masked_patches_tensor.clone(), Q.shape[1]
    dist.all_reduce(samples, group=group)
    mass = Q.sum()
    dist.all_reduce(mass, group=group)
    Q /= mass
    for _ in range(n_iterations):
        # Each prototype gets the same share of all ranks' mass, then each sample.
        sums = Q.sum(dim=0, keepdim=True)
        dist.all_reduce(sums, group=group)
        Q /= sums * prototypes
        Q /= Q.sum(dim=1, keepdim=True) * samples
    return Q.mul_(samples)


def inputs(case: Case, ctx: RankContext) -> Arguments:
    samples, prototypes = _samples(case, ctx.rank), case["prototypes"]
    counted = torch.tensor([samples], device=ctx.device)
    if case.name == "pkb":
        return ctx.randn(samples, prototypes, dtype=ctx.wide) * 0.01, 0.07, counted, case["iterations"], None
    common = ctx.shared()
    # The teacher's temperature rises during training. Scores are cosines: small ones, a few clear winners for each
    # sample, and prototypes that are popular everywhere or on one rank.
    temperature = common.integer(40, 71) / 1000
    scores = ctx.randn(samples, prototypes, dtype=torch.float32) * 0.05
    scores += common.randn(prototypes, dtype=torch.float32) * 0.05 + ctx.randn(prototypes, dtype=torch.float32) * 0.05
    popular = ctx.permutation(prototypes)[ctx.skewed(prototypes, samples, 4, exponent=0.8)]
    scores.scatter_(1, popular, ctx.uniform(samples, 4, low=0.2, high=0.7, dtype=torch.float32))
    return scores.to(ctx.wide), temperature, counted, case["iterations"], None


def _samples(case: Case, rank: int) -> int:
    """As published the same on every rank, otherwise up to a quarter less."""
    samples = case["samples"]
    return samples if case.name == "pkb" else samples - rank % 3 * (samples // 8)


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    samples, prototypes, iterations = _samples(case, 0), case["prototypes"], case["iterations"]
    wide = max(element_bytes, 4)
    # Each iteration has a sum over ranks for every prototype, which needs the iteration before.
    link = iterations * prototypes * wide if world_size > 1 else 0
    return Work(
        # exp, and each iteration two sums of products.
        flops=samples * prototypes * (1 + 4 * iterations),
        # One pass: the matrix could stay on chip.
        hbm_bytes=2 * samples * prototypes * wide + 8,
        link_out_bytes=link,
        link_in_bytes=link,
    )


PROBLEM = Problem(
    title="Sinkhorn-Knopp over samples sharded across ranks",
    family="data",
    source="DINOv2",
    tags=("all_reduce", "uneven"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"samples": 1024, "prototypes": 16384, "iterations": 3},
        "default": {"samples": 1024, "prototypes": 16384, "iterations": 3},
        # DINOv2's 65536 prototypes, a few thousand masked patches per GPU.
        "large": {"samples": 3072, "prototypes": 65536, "iterations": 3},
        "odd": {"samples": 131, "prototypes": 517, "iterations": 4},
        "tiny": {"samples": 9, "prototypes": 40, "iterations": 2},
    },
    repair=(
        "Scores of 0.01 at temperature 0.07 are so flat that all results are about 1 / 16384, with or without "
        "iterations, and temperature hardly matters. Default scores have winners and popular prototypes; ranks have "
        "different numbers of samples."
    ),
)
