"""One training step of a two-layer network whose parameters and optimizer state are sharded: FSDP, ZeRO-3.

Gather the parameters, go forward and backward on the own part of the batch, reduce-scatter the gradients, and let AdamW
update the own shard.
"""

import math

import torch
import torch.distributed as dist

from problems.sharded import up
from problems.spec import Arguments, Case, Problem, RankContext, Work

# torch 2.13 renamed the calls and warns on every use of the old names; earlier versions know only those.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def gradients(
    X: torch.Tensor, y: torch.Tensor, W1: torch.Tensor, b1: torch.Tensor, W2: torch.Tensor, b2: torch.Tensor
) -> list[torch.Tensor]:
    """Of mean((relu(X W1' + b1) W2' + b2 - y)**2), the mean over all elements, by W1, b1, W2 and b2."""
    hidden = torch.relu(torch.addmm(b1, X, W1.T))
    d_out = (torch.addmm(b2, hidden, W2.T) - y) * (2 / y.numel())
    d_hidden = (d_out @ W2) * (hidden > 0)
    return [d_hidden.T @ X, d_hidden.sum(0), d_out.T @ hidden, d_out.sum(0)]


def reference(
    X_local: torch.Tensor,
    y_local: torch.Tensor,
    flat_param_shard: torch.Tensor,
    param_shapes: tuple[tuple[int, ...], ...],
    exp_avg_shard: torch.Tensor,
    exp_avg_sq_shard: torch.Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    step: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tensors are of the run's dtype; W = number of ranks.

    `X_local`: (b, d_in) and `y_local`: (b, d_out), this rank's inputs and targets; b is the same on every rank.
    `param_shapes`: ((h, d_in), (h,), (d_out, h), (d_out,)), the shapes of W1, b1, W2, b2, whose elements one after the
    other are the flat parameters; W divides their number, total, and need not respect where one ends.
    `flat_param_shard`: (total / W,), slice r of the flat parameters on rank r. `exp_avg_shard`, `exp_avg_sq_shard`: the
    same slice of the first and second moments; the second are not negative. Numbers are the same on every rank;
    `step` is 1 or more.

    Returns three new tensors (total / W,): the slice of the parameters, of the first and of the second moments after
    one step of AdamW with the gradient's mean over ranks. Weight decay is that of the old parameters.
    """
    world_size = dist.get_world_size()
    flat = flat_param_shard.new_empty(world_size * flat_param_shard.numel())
    all_gather(flat, flat_param_shard)
    sizes = [math.prod(shape) for shape in param_shapes]
    parameters = [part.view(shape) for part, shape in zip(flat.split(sizes), param_shapes, strict=True)]
    flat_gradient = torch.cat([part.reshape(-1) for part in gradients(X_local, y_local, *parameters)])
    gradient = torch.empty_like(flat_param_shard)
    reduce_scatter(gradient, flat_gradient)
    gradient /= world_size
    first = beta1 * exp_avg_shard + (1 - beta1) * gradient
    second = beta2 * exp_avg_sq_shard + (1 - beta2) * gradient * gradient
    update = (first / (1 - beta1**step)) / ((second / (1 - beta2**step)).sqrt() + eps)
    return flat_param_shard - lr * update - (lr * weight_decay) * flat_param_shard, first, second


def shapes(case: Case, world_size: int) -> tuple[tuple[int, ...], ...] | None:
    """Of the parameters; the hidden layer as large as it must be to cut them evenly, or None if it would not end."""
    d_in, d_out = case["d_in"], case["d_out"]
    for h in range(case["h"], case["h"] + 1024):
        if (h * (d_in + 1 + d_out) + d_out) % world_size == 0:
            return (h, d_in), (h,), (d_out, h), (d_out,)
    return None


def total_of(case: Case, world_size: int) -> int:
    return sum(math.prod(shape) for shape in shapes(case, world_size) or ())


def illegal(case: Case, world_size: int) -> str | None:
    if shapes(case, world_size) is None:
        d_in, d_out = case["d_in"], case["d_out"]
        return f"no hidden size makes {world_size} ranks divide the parameters, with d_in={d_in} and d_out={d_out}"
    return None


def inputs(case: Case, ctx: RankContext) -> Arguments:
    rows, d_in, d_out = up(case["m"], ctx.world_size) // ctx.world_size, case["d_in"], case["d_out"]
    sized = shapes(case, ctx.world_size)
    assert sized is not None
    common, h = ctx.shared(), sized[0][0]
    total = total_of(case, ctx.world_size)
    part = total // ctx.world_size
    own = slice(ctx.rank * part, (ctx.rank + 1) * part)
    step = common.integer(1, 8)
    if case.name == "pkb":
        # As published the other ranks have no parameters, and nobody has moments.
        parameters = common.randn(total)[own] * (ctx.rank == 0)
        X, y, zeros = ctx.randn(rows, d_in), ctx.randn(rows, d_out), parameters.new_zeros(part)
        return X, y, parameters, sized, zeros, zeros.clone(), 1e-3, 0.9, 0.999, 1e-8, 0.01, step
    wide = torch.float32
    # Targets grow with the width as the mean's divisor does, or gradients would vanish in 16 bits.
    target = 2 * d_out**0.5
    size = 0.2 * target / d_out
    weights = [common.randn(*shape, dtype=wide) for shape in sized]
    # Biases matter in the sums, but do not outweigh the weights in a shard.
    for weight, fan_in, scale in zip(weights, (d_in, d_in, h, h), (1.0, 4.0, target / 6, target / 2), strict=True):
        weight *= scale * fan_in**-0.5
    flat = torch.cat([weight.reshape(-1) for weight in weights])
    X = ctx.randn(rows, d_in, dtype=wide)
    # There is something to learn, a linear map, so that gradients do not average out over the batch.
    y = X @ (common.randn(d_in, d_out, dtype=wide) * d_in**-0.5)
    y += 0.3 * ctx.randn(rows, d_out, dtype=wide)
    # Moments of about the gradients' size. The second ones stay clear of what large gradients add to them, or those
    # few elements would decide how accurate an answer is.
    first = ctx.randn(part, dtype=wide) * (0.3 * size)
    second = (ctx.uniform(part, low=0.3, high=0.9, dtype=wide) * size).square()
    tensors = [tensor.to(ctx.dtype) for tensor in (X, target * y, flat[own], first, second)]
    # A step is as large as a weight, decay a tenth of it, and epsilon a tenth of a gradient.
    return *tensors[:3], sized, *tensors[3:], 0.05, 0.9, 0.99, 0.2 * size, 2.0, step + 1


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    rows, d_in, d_out = up(case["m"], world_size) // world_size, case["d_in"], case["d_out"]
    total = total_of(case, world_size)
    part, batch = total // world_size, rows * (d_in + d_out)
    h = (total - d_out) // (d_in + 1 + d_out)
    # Own parameters and the gradients of others' leave; others' parameters and a sum of gradients arrive. Or the
    # batch goes round, where that is smaller.
    return Work(
        flops=2 * rows * h * (2 * d_in + 3 * d_out) + 15 * part,
        hbm_bytes=(batch + 6 * part) * element_bytes,
        link_out_bytes=min(total, batch) * element_bytes if world_size > 1 else 0,
        link_in_bytes=min(total, (world_size - 1) * batch) * element_bytes,
    )


PROBLEM = Problem(
    title="Training step of a sharded two-layer network with AdamW",
    family="fsdp_zero",
    source="PyTorch FSDP",
    tags=("gemm", "all_gather", "reduce_scatter", "optimizer"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "d_in": 256, "h": 512, "d_out": 256},
        "default": {"m": 1024, "d_in": 256, "h": 512, "d_out": 256},
        # The MLP of GPT-3 6.7B, 32768 tokens in the batch.
        "large": {"m": 32768, "d_in": 4096, "h": 16384, "d_out": 4096},
        "odd": {"m": 211, "d_in": 67, "h": 101, "d_out": 33},
        "tiny": {"m": 14, "d_in": 10, "h": 12, "d_out": 8},
    },
    tolerance="rounding",
    illegal=illegal,
    repair="As published only rank 0 has parameters that are not zero, so the network outputs zeros; moments start at "
    "zero and steps are too small to be seen. `default` has a real network, moments, and steps as large as "
    "the weights.",
)
