"""One data-parallel training step of a two-layer network: every rank has all parameters and all of Adam's state, takes
rank 0's, averages the gradients of its rows with the others', and makes the same update.
"""

import torch
import torch.distributed as dist

from problems.spec import Arguments, Case, Problem, RankContext, Work
from problems.training import adam_arguments, batch, moments, network, parameters, sizes_of_moments, step_flops


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
    exp_avg_W1: torch.Tensor,
    exp_avg_b1: torch.Tensor,
    exp_avg_W2: torch.Tensor,
    exp_avg_b2: torch.Tensor,
    exp_avg_sq_W1: torch.Tensor,
    exp_avg_sq_b1: torch.Tensor,
    exp_avg_sq_W2: torch.Tensor,
    exp_avg_sq_b2: torch.Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    step: int,
) -> tuple[torch.Tensor, ...]:
    """Everything is of one dtype and stays in it; no argument is changed.

    X_local: (rows, d_in), y_local: (rows, d_out): this rank's inputs and targets. All ranks have as many rows.
    W1: (hidden, d_in), b1: (hidden,), W2: (d_out, hidden), b2: (d_out,): parameters before the step.
    exp_avg_*, exp_avg_sq_*: Adam's moments of them, of the same shapes. Of parameters and moments only rank 0's count
        and all ranks use them; the other ranks hold anything else.
    lr, beta1, beta2, eps, step: Adam's, the same on all ranks; step >= 1 counts this one. No weight decay.

    Returns the updated W1, b1, W2, b2, their first moments and their second moments, the same on all ranks.
    The loss is the mean squared error of each rank's rows, averaged over ranks.
    """
    weights = (W1, b1, W2, b2)
    first = (exp_avg_W1, exp_avg_b1, exp_avg_W2, exp_avg_b2)
    second = (exp_avg_sq_W1, exp_avg_sq_b1, exp_avg_sq_W2, exp_avg_sq_b2)
    w, m, v = (torch.cat([tensor.flatten() for tensor in tensors]) for tensors in (weights, first, second))
    for state in (w, m, v):
        dist.broadcast(state, src=0)
    grad = gradients(X_local, y_local, *unflatten(w, weights))
    dist.all_reduce(grad)
    updated = adam(w, m, v, grad / dist.get_world_size(), lr, beta1, beta2, eps, step)
    return tuple(tensor for flat in updated for tensor in unflatten(flat, weights))


def inputs(case: Case, ctx: RankContext) -> Arguments:
    net, hyper = network(case, ctx.world_size, even=False), adam_arguments(case, ctx)
    x, y = batch(case, ctx, net)
    weights = parameters(case, ctx, net)
    state = [moments(case, ctx, hyper, sizes_of_moments(ctx, *shape), *shape) for shape in net.shapes]
    return x, y, *weights, *(first for first, _ in state), *(second for _, second in state), *hyper


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    net = network(case, world_size, even=False)
    count = net.parameters
    # Moments that are known to be 0 need not be read or sent.
    read = count if case.name == "pkb" else 3 * count
    # Rank 0 sends what it alone knows: parameters and moments, best updated ones, which hold the gradients as well; or
    # parameters and its gradients, or the rows that they come from. All that a rank returns arrives there (of moments
    # that were 0, one gives the other).
    out_elements = count + min(count, net.data) if case.name == "pkb" else 3 * count
    in_elements = 2 * count if case.name == "pkb" else 3 * count
    several = world_size > 1
    return Work(
        flops=step_flops(net, world_size),
        hbm_bytes=(read + 3 * count + net.data) * element_bytes,
        link_out_bytes=several * out_elements * element_bytes,
        link_in_bytes=several * in_elements * element_bytes,
    )


PROBLEM = Problem(
    title="Data-parallel Adam step of a two-layer network",
    family="data",
    source="PyTorch DDP",
    tags=("optimizer", "gemm", "broadcast", "all_reduce"),
    reference=reference,
    inputs=inputs,
    work=work,
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
        "As published a step moves the parameters by less than the published tolerance, moments begin as zeros on all "
        "ranks (so that nobody need send them) and squared gradients vanish in them, and outputs are hundreds of times "
        "larger than targets. By default moments are those of a few steps, rates make every step visible, layers keep "
        "the scale of their inputs, and ranks other than 0 begin with a state that is wrong and looks right."
    ),
)
