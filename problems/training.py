"""What the problems of training steps share: how much clipping there is, a two-layer network's sizes, optimiser state.

For `inputs`, `work` and `illegal` only. A `reference` is shown to models on its own and must not import from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from problems.spec import Arguments, Case, RankContext, Work


def clips(case: Case, ctx: RankContext) -> bool:
    """Whether the norm is above its limit: always in what is timed for bandwidth, otherwise in three of four trials."""
    return case.name in ("pkb", "large") or ctx.stream("clips").integer(0, 4) > 0


def sizes_of_gradients(ctx: RankContext, *shape: int) -> torch.Tensor:
    """Standard deviations of gradients, over two decades and the same on every rank."""
    drawn = ctx.stream("sizes of gradients").uniform(*shape, low=-1.5, high=0.5, dtype=torch.float32)
    return (10**drawn).double().cpu()


def limit(case: Case, ctx: RankContext, norm: float) -> float:
    """A limit for gradients of about that norm, clearly below or above it."""
    low, high = (0.02, 0.7) if clips(case, ctx) else (1.4, 4.0)
    return norm * float(ctx.stream("limit").uniform(1, low=low, high=high, dtype=torch.float32))


@dataclass(frozen=True)
class Network:
    """A linear layer, ReLU, a linear layer; `rows` of inputs and targets on each rank."""

    rows: int
    d_in: int
    hidden: int
    d_out: int

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of W1, b1, W2, b2."""
        return (self.hidden, self.d_in), (self.hidden,), (self.d_out, self.hidden), (self.d_out,)

    @property
    def parameters(self) -> int:
        return self.hidden * (self.d_in + 1 + self.d_out) + self.d_out

    @property
    def data(self) -> int:
        """Elements of a rank's inputs and targets."""
        return self.rows * (self.d_in + self.d_out)

    @property
    def flops(self) -> int:
        """Of forward and backward on a rank's rows; the inputs need no gradient."""
        return self.rows * self.hidden * (4 * self.d_in + 6 * self.d_out)


def network(case: Case, world_size: int, *, even: bool) -> Network:
    """The published sizes for `m` and `n`, or those that the case gives. `even`: the hidden layer is widened until the
    parameters divide evenly over the ranks, if they can."""
    rows = -(-case["m"] // world_size)
    if "hidden" in case.sizes:
        return Network(rows, case["d_in"], case["hidden"], case["d_out"])
    n = case["n"]
    d_in, d_out, hidden = max(16, min(n, 256)), max(8, min(n // 4, 256)), max(32, min(n // 2, 512))
    widths = range(hidden, hidden + world_size) if even else ()
    fits = (width for width in widths if Network(rows, d_in, width, d_out).parameters % world_size == 0)
    return Network(rows, d_in, next(fits, hidden), d_out)


def uneven_parameters(case: Case, world_size: int) -> str | None:
    """Why the parameters cannot be cut into equal parts, or None if they can."""
    net = network(case, world_size, even=True)
    if net.parameters % world_size == 0:
        return None
    return f"{net.d_in} to {net.d_out} features: no hidden width divides the parameters evenly over {world_size} ranks"


def batch(case: Case, ctx: RankContext, net: Network) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets. The loss is a mean, so gradients shrink as rows and features grow; inputs and targets grow as
    much, which keeps gradients of the weights near 1/sqrt(d_out)."""
    scale = 1.0 if case.name == "pkb" else float(net.rows * net.d_out) ** 0.25
    x, y = (ctx.randn(net.rows, width, dtype=torch.float32) * scale for width in (net.d_in, net.d_out))
    return x.to(ctx.dtype), y.to(ctx.dtype)


def parameters(case: Case, ctx: RankContext, net: Network) -> tuple[torch.Tensor, ...]:
    """W1, b1, W2, b2 as each rank holds them before rank 0's are broadcast: zeros on the others as published, otherwise
    values that look as good as rank 0's."""
    if case.name == "pkb":
        draw: Any = (
            ctx.randn if ctx.rank == 0 else lambda *shape: torch.zeros(shape, dtype=ctx.dtype, device=ctx.device)
        )
        return tuple(draw(*shape) for shape in net.shapes)
    fans = (net.d_in, 1, net.hidden, 1)
    drawn = (ctx.randn(*shape, dtype=torch.float32) for shape in net.shapes)
    return tuple((values * fan**-0.5).to(ctx.dtype) for values, fan in zip(drawn, fans, strict=True))


Adam = tuple[float, float, float, float, int]
"""Rate, beta1, beta2, epsilon and step, as the problems' arguments have them."""


def adam_arguments(case: Case, ctx: RankContext) -> Adam:
    """As published, or so that every part of the update shows in 16-bit results as well: a large rate, a short memory
    of squares, an epsilon of the size of small gradients, and early steps with strong bias corrections."""
    common = ctx.stream("adam")
    if case.name == "pkb":
        return 1e-3, 0.9, 0.999, 1e-8, common.integer(1, 8)
    return 0.05, 0.9, 0.95, 3e-3, common.integer(3, 20)


def moments(
    case: Case, ctx: RankContext, adam: Adam, sizes: torch.Tensor, *shape: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """First and second moments before that step: zeros as published, otherwise as gradients of about `sizes` leave
    them (a mean of noisy gradients is smaller than they are)."""
    if case.name == "pkb":
        first, second = torch.zeros(2, *shape, dtype=ctx.dtype, device=ctx.device)
        return first, second
    _, beta1, beta2, _, step = adam
    first = ctx.randn(*shape, dtype=torch.float32) * 0.3 * (1 - beta1 ** (step - 1)) * sizes
    spread = ctx.uniform(*shape, low=0.5, high=1.5, dtype=torch.float32)
    second = spread * (1 - beta2 ** (step - 1)) * sizes**2
    return first.to(ctx.dtype), second.to(ctx.dtype)


def sizes_of_moments(ctx: RankContext, *shape: int) -> torch.Tensor:
    """Of single gradients: two decades, up to what the network's weights get from `batch`."""
    return 10 ** ctx.uniform(*shape, low=-3.0, high=-1.0, dtype=torch.float32)


def step_flops(net: Network, world_size: int) -> float:
    """Of gradients on every rank, and of their sum over ranks and Adam's update, which the ranks share."""
    count = net.parameters
    return net.flops + (count * (world_size - 1) + 13 * count) / world_size


def sharded_state_inputs(case: Case, ctx: RankContext) -> Arguments:
    """Of a step in which every rank has all parameters and an equal part of the moments (ZeRO stages 1 and 2)."""
    net, hyper = network(case, ctx.world_size, even=True), adam_arguments(case, ctx)
    x, y = batch(case, ctx, net)
    weights = parameters(case, ctx, net)
    part = net.parameters // ctx.world_size
    return x, y, *weights, *moments(case, ctx, hyper, sizes_of_moments(ctx, part), part), *hyper


def sharded_state_work(case: Case, world_size: int, element_bytes: int) -> Work:
    """Of such a step. It returns all parameters and the rank's part of the moments."""
    net = network(case, world_size, even=True)
    count, part = net.parameters, net.parameters // world_size
    others = count - part
    # Rank 0 reads the parameters, and everybody writes the updated ones; moments that are known to be 0 are not read.
    moments_read = 0 if case.name == "pkb" else 2 * part
    # Out of rank 0: the parameters, of its own part updated ones, and what the others' parts of the gradient need, as
    # gradients or as the rows that they come from. Into each other rank: the others' updated parameters and, for its
    # own part, at least parameters and gradients.
    out_elements = count + min(others, net.data) if world_size > 1 else 0
    in_elements = count + part if world_size > 1 else 0
    return Work(
        flops=step_flops(net, world_size),
        hbm_bytes=(2 * count + moments_read + 2 * part + net.data) * element_bytes,
        link_out_bytes=out_elements * element_bytes,
        link_in_bytes=in_elements * element_bytes,
    )
