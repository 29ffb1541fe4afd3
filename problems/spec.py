"""The types a problem file is written with. Imports torch only when inputs are drawn, so that listing stays cheap."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

Tolerance = Literal["exact", "rounding"]
"""`exact`: data movement, every bit must agree. `rounding`: arithmetic, judged against a float64 oracle."""


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
        self._stream = _stream or f"rank {rank}"
        self._generator = torch.Generator(device=device).manual_seed(_derive(seed, self._stream))

    def shared(self) -> RankContext:
        """A context that draws the same values on every rank (replicated weights, a common root)."""
        return RankContext(
            seed=self.seed,
            rank=self.rank,
            world_size=self.world_size,
            dtype=self.dtype,
            device=self.device,
            _stream="shared",
        )

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


Arguments = tuple[Any, ...]
"""Positional arguments of `reference` and `solution`: tensors, numbers, None."""


@dataclass(frozen=True)
class Problem:
    """One workload. `reference` is what is right and the baseline of every speed-up; it runs on every rank inside an
    initialised process group, must accept float64 inputs (it is its own oracle) and must not change its inputs.

    Title, family, source, tags and cases must be literals: the catalogue reads them without importing the file.
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
    illegal: Callable[[Case, int], str | None] = lambda case, world_size: None
    """`(case, world_size) -> why this problem cannot run there`, or None if it can."""
