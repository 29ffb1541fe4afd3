"""The types a problem file is written with. Imports torch only when inputs are drawn, so that listing stays cheap."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

Tolerance = Literal["exact", "rounding", "flat"]
"""`exact`: data movement, every bit must agree. `rounding`: arithmetic, judged against a float64 oracle. `flat`: judged
against the reference's own output by ParallelKernelBench's rule, whatever check is asked for."""


class ProblemError(Exception):
    """The user asked for a problem, case or world size that does not exist. The message is one clear line."""


@dataclass(frozen=True)
class Case:
    """A named set of sizes, e.g. `pkb` = the published shape."""

    name: str
    sizes: Mapping[str, int]

    def __getitem__(self, size: str) -> int:
        return self.sizes[size]

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(f'{k}={v}' for k, v in self.sizes.items())})"


@dataclass(frozen=True)
class Work:
    """What the busiest rank cannot avoid in one call: a true floor, so no measured time may ever beat it.

    `hbm_bytes` counts reads and writes of device memory, a peer's write into it included; `link_out_bytes` and
    `link_in_bytes` count bytes over the GPU-to-GPU fabric in each direction, with whatever help a switch could give.
    """

    flops: float = 0.0
    hbm_bytes: float = 0.0
    link_out_bytes: float = 0.0
    link_in_bytes: float = 0.0


@dataclass(frozen=True)
class Subgroups:
    """A process-group argument: the ranks in disjoint sets that cover all of them, each in ascending order.

    Every rank's `reference` and `solution` get their own set's group, as `torch.distributed` knows it; one set of all
    ranks is the world's. (Where a group of None means the world, pass None.)"""

    sets: tuple[tuple[int, ...], ...]


def _derive(seed: int, *labels: object) -> int:
    digest = hashlib.blake2b(repr((seed, *labels)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # torch generators take a signed 64-bit seed


class RankContext:
    """Draws one rank's inputs for one trial. Owns seed, rank, device and dtype, so a problem cannot forget to
    make its data differ by rank and by trial. `seed` is the trial's secret; each rank's stream is hashed from it."""

    def __init__(
        self,
        *,
        seed: int,
        rank: int,
        world_size: int,
        dtype: torch.dtype,
        device: torch.device | str,
        _stream: str = "",
    ) -> None:
        import torch

        self.seed, self.rank, self.world_size, self.dtype, self.device = seed, rank, world_size, dtype, device
        self.wide: torch.dtype = torch.promote_types(dtype, torch.float32)
        """The run's dtype, float32 at least: for what is float32 whatever the run's dtype."""
        self._stream = _stream or f"rank {rank}"
        self._generator = torch.Generator(device=device).manual_seed(_derive(seed, self._stream))

    def stream(self, label: str) -> RankContext:
        """A context that draws, from the beginning, the same values on every rank that asks for that label."""
        return RankContext(
            seed=self.seed,
            rank=self.rank,
            world_size=self.world_size,
            dtype=self.dtype,
            device=self.device,
            _stream=label,
        )

    def shared(self) -> RankContext:
        """The same for all ranks (replicated weights, a common root)."""
        return self.stream("shared")

    def of_rank(self, rank: int) -> RankContext:
        """What that rank draws, from the beginning: for what a rank must know of another's inputs (sizes)."""
        return self.stream(f"rank {rank}")

    def randn(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Standard normal, drawn in float32 and rounded once to `dtype` (the run's dtype unless given)."""
        import torch

        drawn = torch.randn(shape, generator=self._generator, device=self.device, dtype=torch.float32)
        return drawn.to(dtype or self.dtype)

    def uniform(
        self, *shape: int, low: float = 0.0, high: float = 1.0, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        import torch

        drawn = torch.rand(shape, generator=self._generator, device=self.device, dtype=torch.float32)
        return (drawn * (high - low) + low).to(dtype or self.dtype)

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """int64, uniform in [low, high)."""
        import torch

        return torch.randint(low, high, shape, generator=self._generator, device=self.device)

    def integer(self, low: int, high: int) -> int:
        return int(self.integers(low, high, 1).item())

    def permutation(self, count: int) -> torch.Tensor:
        """int64, 0 to count - 1 in random order."""
        import torch

        return torch.randperm(count, generator=self._generator, device=self.device)

    def skewed(self, categories: int, *shape: int, exponent: float = 1.0) -> torch.Tensor:
        """int64 in [0, categories), category c with probability proportional to (c + 1) ** -exponent (Zipf): how tokens
        choose experts and edges choose nodes. Which categories are popular is the caller's to shuffle."""
        import torch

        weights = torch.arange(1, categories + 1, dtype=torch.float64, device=self.device) ** -exponent
        edges = (weights / weights.sum()).cumsum(0)
        drawn = torch.rand(shape, generator=self._generator, device=self.device, dtype=torch.float64)
        return torch.searchsorted(edges, drawn).clamp_max(categories - 1)

    def linear(self, inner: int, outer: int, scale: float | None = None) -> torch.nn.Linear:
        """A linear layer with bias; weights are normal with standard deviation `scale`, 1/sqrt(inner) unless given."""
        import torch

        layer = torch.nn.Linear(inner, outer, device=self.device, dtype=self.dtype)
        with torch.no_grad():
            layer.weight.copy_(self.randn(outer, inner, dtype=torch.float32) * (scale or inner**-0.5))
            layer.bias.copy_(self.randn(outer, dtype=torch.float32) * 0.5)
        return layer


Arguments = tuple[Any, ...]
"""Positional arguments of `reference` and `solution`: tensors (strided or sparse COO), numbers, strings, None, lists
and tuples of them, `torch.nn.Linear`, and `Subgroups` for a process group."""


@dataclass(frozen=True)
class Problem:
    """One workload. `reference` is what is right and the baseline of every speed-up; it runs on every rank inside an
    initialised process group, must accept float64 inputs (it is its own oracle) and must not change its inputs, unless
    `updates` says so.

    All but the functions must be literals: the catalogue reads them without importing the file. Positions are those of
    `reference`'s arguments.
    """

    title: str
    family: str
    source: str
    tags: tuple[str, ...]
    reference: Callable[..., Any]
    inputs: Callable[[Case, RankContext], Arguments]
    work: Callable[[Case, int, int], Work]
    """`(case, world_size, element_bytes) -> Work`."""
    cases: Mapping[str, Mapping[str, int]]
    tolerance: Tolerance = "rounding"
    repair: str = ""
    """Why the default case is not `pkb`: what goes unseen in the published form, and what `default` does about it."""
    illegal: Callable[[Case, int], str | None] = lambda case, world_size: None
    """`(case, world_size) -> why this problem cannot run there`, or None if it can."""
    changing: tuple[int, ...] | None = None
    """Arguments in whose tensors (of integers too, then) some elements may take values from elsewhere in the same one,
    without breaking what the inputs promise. None: every floating-point tensor."""
    few: bool = False
    """Only few of them at a time, at the same places on every rank: what they mean together, or that there are no near
    ties, would not hold if all did. Else all elements change before a timed call, each rank's in their own way (tensors
    that are equal on some ranks stay so)."""
    updates: tuple[int, ...] = ()
    """Arguments that `reference` writes into; what they then hold is judged as output is."""
    scratch: tuple[int, ...] = ()
    """Arguments that `solution` may destroy."""
    gradients: bool = False
    """Whether `reference` and `solution` run with autograd on, as in ParallelKernelBench."""
    canonical: Callable[..., Any] | None = None
    """`(output, *arguments) -> output`, on each rank: the same answer in one agreed order where the workload leaves it
    open. The output may be a candidate's: its values must never become indices."""
    unsure: Callable[..., Any] | None = None
    """`(oracle, *arguments)` -> for each tensor of the output (in its structure) a bool tensor, or None: elements whose
    right value hangs on which way something is rounded (a quantisation at its edge, a tie). They are not judged. On
    all ranks at once, so collectives are allowed."""
