"""Update of a layer-wise Kalman filter: every rank owns some blocks of weights and their covariances, and all
receive all weights.

DeePMD-kit's optimizer for interatomic potentials, in float64.
"""

import torch
import torch.distributed as dist

from problems.spec import Arguments, Case, Problem, RankContext, Work


def gathered(values: torch.Tensor) -> list[torch.Tensor]:
    """Every rank's `values`, all of one shape."""
    parts = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, values)
    return parts


def padded(values: torch.Tensor, length: int) -> torch.Tensor:
    return torch.nn.functional.pad(values, (0, length - len(values)))


def reference(
    H: list[torch.Tensor],
    error: torch.Tensor,
    weights: list[torch.Tensor],
    P: list[torch.Tensor],
    kalman_lambda: float,
    kalman_nue: float = 0.9987,
) -> tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor]:
    """All tensors are float64, whatever the run's dtype. A rank owns B blocks, B at least 1; block i has n_i weights. B
    and the n_i may differ from rank to rank; a rank knows its own only.

    `H`, `weights`: lists of B tensors (n_i, 1), the gradient and the weights. `P`: list of B tensors (n_i, n_i),
    symmetric and positive definite. `error`: a tensor without axes, this rank's own. `kalman_lambda`, `kalman_nue`:
    between 0 and 1, the same on every rank.

    With s = the sum over all ranks' blocks of (kalman_lambda + h' P h), and k = P h for each block, returns
    - the list of all ranks' new weights, (n_i, 1) each, rank 0's blocks first, the same on every rank:
      w + error * k / s with the owner's error;
    - the list of this rank's new covariances (n_i, n_i): (P - k k' / s) / kalman_lambda;
    - the next lambda, a tensor without axes: kalman_nue * kalman_lambda + 1 - kalman_nue.

    A solution may replace the elements of the lists `weights` and `P`, or overwrite these tensors.
    """
    device = error.device
    gains = [p @ h for p, h in zip(P, H, strict=True)]
    total = torch.stack([(h * k).sum() + kalman_lambda for h, k in zip(H, gains, strict=True)]).sum()
    dist.all_reduce(total)
    own = [torch.addcmul(w, error / total, k) for w, k in zip(weights, gains, strict=True)]
    covariances = [torch.addmm(p, k / total, k.T, alpha=-1).div_(kalman_lambda) for p, k in zip(P, gains, strict=True)]
    # First how many blocks each rank has and how long they are together, then how long each is, then the weights.
    counts = torch.tensor([len(own), sum(map(len, own))], device=device)
    blocks, lengths = torch.stack(gathered(counts)).T.tolist()
    each = gathered(padded(torch.tensor([len(w) for w in own], device=device), max(blocks)))
    flat = gathered(padded(torch.cat(own).view(-1), max(lengths)))
    everybody = [
        part.clone().view(-1, 1)
        for values, count, length, splits in zip(flat, blocks, lengths, torch.stack(each).tolist(), strict=True)
        for part in values[:length].split(splits[:count])
    ]
    return everybody, covariances, total.new_tensor(kalman_nue * kalman_lambda + 1 - kalman_nue)


def lengths_of(case: Case, rank: int) -> list[int]:
    """Of one rank's blocks: as published all alike, otherwise some shorter, fewer on some ranks, and most on rank 0."""
    size, blocks = case["block"], case["blocks"]
    if case.name == "pkb":
        return [size] * blocks
    count = max(1, blocks - rank % 3)
    return [size - size // 8 * ((i + rank) % 4) for i in range(count)]


def inputs(case: Case, ctx: RankContext) -> Arguments:
    lengths, double = lengths_of(case, ctx.rank), torch.float64
    gradient = 0.01 if case.name == "pkb" else 1.0
    H = [gradient * ctx.randn(n, 1, dtype=double) for n in lengths]
    error = ctx.randn(1, dtype=double)[0]
    weights = [ctx.randn(n, 1, dtype=double) for n in lengths]
    if case.name == "pkb":
        return H, error, weights, [torch.eye(n, dtype=double, device=ctx.device) for n in lengths], 0.98, 0.9987
    factors = [ctx.randn(n, n, dtype=double) for n in lengths]
    # Condition about 40, symmetric to the last bit.
    P = [
        torch.eye(n, dtype=double, device=ctx.device) / 10 + f @ f.T / n for n, f in zip(lengths, factors, strict=True)
    ]
    P = [(p + p.T) / 2 for p in P]
    common = ctx.shared()
    kalman_lambda, kalman_nue = (float(common.uniform(1, low=low, high=0.999, dtype=double)) for low in (0.9, 0.95))
    # An error of order one, as the ranks' parts of the output should be alike.
    return H, error.sign() * (0.5 + error.abs()), weights, P, kalman_lambda, kalman_nue


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    ranks = [lengths_of(case, rank) for rank in range(world_size)]
    own, everybody = sum(ranks[0]), sum(map(sum, ranks))
    squares = sum(n * n for n in ranks[0])
    float64 = 8
    return Work(
        # Of the symmetric update, half.
        flops=2 * squares + 3 * squares / 2 + 6 * own,
        # Half of a symmetric matrix says all; the result is written whole.
        hbm_bytes=(1.5 * squares + 2 * own + everybody) * float64,
        # With multicast the own weights leave once; the others arrive one by one. And one number for the sum.
        link_out_bytes=(own + 1) * float64 if world_size > 1 else 0,
        link_in_bytes=(everybody - own + 1) * float64 if world_size > 1 else 0,
    )


PROBLEM = Problem(
    title="Layer-wise Kalman filter update with blocks distributed over ranks",
    family="data",
    source="DeePMD-kit",
    tags=("optimizer", "all_reduce", "all_gather", "uneven", "float64"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"blocks": 8, "block": 1024},
        "default": {"blocks": 8, "block": 1024},
        # Blocks of DeePMD-kit's usual largest size.
        "large": {"blocks": 4, "block": 5120},
        "odd": {"blocks": 5, "block": 211},
        "tiny": {"blocks": 3, "block": 11},
    },
    tolerance="rounding",
    repair="As published the covariances are the identity, the gradients tiny and all blocks of one size, so the "
    "update is hardly visible and no product with P is needed. `default` has full covariances and ranks with "
    "other blocks.",
    # Not P: it is promised to be symmetric.
    changing=(0, 1, 2),
    scratch=(2, 3),
)
