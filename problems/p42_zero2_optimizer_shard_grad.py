"""One training step of a two-layer network in ZeRO stage 2: every rank has all parameters, but only a part of the
summed gradients and of the optimiser's state; it updates that part of the parameters, and the ranks gather them.
"""

import torch
import torch.distributed as dist

from problems.spec import Problem
from problems.training import sharded_state_inputs, sharded_state_work, uneven_parameters

# torch 2.13 renames the call and warns about the old name.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def gradients(
    x: torch.Tensor, y: torch.Tensor, W1: torch.Tensor, b1: torch.Tensor, W2: torch.Tensor, b2: torch.Tensor
) -> torch.Tensor:
    """Of mean((W2 relu(W1 x + b1) + b2 - y)^2) over all elements of y, flat: those of W1, b1, W2, b2."""
    h = torch.addmm(b1, x, W1.t()).relu_()
    d_out = torch.addmm(b2, h, W2.t()).sub_(y).mul_(2.0 / y.numel())
    d_h = (d_out @ W2).mul_(h > 0)
    grads = (d_h.t() @ x, d_h.sum(0), d_out.t() @ h, d_out.sum(0))
    return torch.cat([grad.flatten() for grad in grads])


def unflatten(flat: torch.Tensor, like: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    parts = flat.split([tensor.numel() for tensor in like])
    return tuple(part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True))


def adam(
    w: torch.Tensor,
    m: torch.Tensor,
    v: torch.Tensor,
    grad: torch.Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    step: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    m = (m * beta1).add_(grad, alpha=1.0 - beta1)
    v = (v * beta2).addcmul_(grad, grad, value=1.0 - beta2)
    denominator = (v / (1.0 - beta2**step)).sqrt_().add_(eps)
    return w - (m / (1.0 - beta1**step)).div_(denominator).mul_(lr), m, v


def reference(
    X_local: torch.Tensor,
    y_local: torch.Tensor,
    W1: torch.Tensor,
    b1: torch.Tensor,
    W2: torch.Tensor,
    b2: torch.Tensor,
    exp_avg_part: torch.Tensor,
    exp_avg_sq_part: torch.Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    step: int,
) -> tuple[torch.Tensor, ...]:
    """Everything is of one dtype and stays in it; no argument is changed.

    X_local: (rows, d_in), y_local: (rows, d_out): this rank's inputs and targets. All ranks have as many rows.
    W1: (hidden, d_in), b1: (hidden,), W2: (d_out, hidden), b2: (d_out,): parameters before the step. Only rank 0's
        count and all ranks use them; the other ranks hold anything else.
    exp_avg_part, exp_avg_sq_part: (part,): this rank's part of Adam's moments. With the parameters flat and row-major
        in the order W1, b1, W2, b2, and part = their number / world size (it divides evenly), rank r has elements
        r*part to (r+1)*part - 1.
    lr, beta1, beta2, eps, step: Adam's, the same on all ranks; step >= 1 counts this one. No weight decay.

    Returns the updated W1, b1, W2, b2, whole and the same on all ranks, and the updated parts of the two moments.
    The loss is the mean squared error of each rank's rows, averaged over ranks.
    """
    world_size, rank = dist.get_world_size(), dist.get_rank()
    weights = (W1, b1, W2, b2)
    flat = torch.cat([weight.flatten() for weight in weights])
    dist.broadcast(flat, src=0)
    grad = gradients(X_local, y_local, *unflatten(flat, weights))
    part = flat.numel() // world_size
    own_grad = torch.empty_like(flat[:part])
    reduce_scatter(own_grad, grad)
    own_grad = own_grad / world_size
    own = flat[rank * part : (rank + 1) * part]
    own, m, v = adam(own, exp_avg_part, exp_avg_sq_part, own_grad, lr, beta1, beta2, eps, step)
    updated = torch.empty_like(flat)
    all_gather(updated, own)
    return *unflatten(updated, weights), m, v


PROBLEM = Problem(
    title="ZeRO stage 2 step: reduce-scattered gradients, sharded Adam state",
    family="fsdp_zero",
    source="DeepSpeed",
    tags=("optimizer", "gemm", "broadcast", "reduce_scatter", "all_gather"),
    reference=reference,
    inputs=sharded_state_inputs,
    work=sharded_state_work,
    cases={
        "pkb": {"m": 1024, "n": 1024},
        "default": {"m": 1024, "n": 1024},
        # A feed-forward block of GPT-3 6.7B, a batch of 16384 tokens.
        "large": {"m": 16384, "d_in": 4096, "hidden": 16384, "d_out": 4096},
        "odd": {"m": 1031, "n": 251},
        "tiny": {"m": 13, "n": 20},
    },
    tolerance="rounding",
    repair=(
        "As published a step moves the parameters by less than the published tolerance, moments begin as zeros (so "
        "that they need not be read) and squared gradients vanish in them, and outputs are hundreds of times larger "
        "than targets. By default moments are those of a few steps, rates make every part of the update visible, "
        "layers keep the scale of their inputs, and ranks other than 0 begin with parameters that are wrong and look "
        "right."
    ),
    illegal=uneven_parameters,
)
