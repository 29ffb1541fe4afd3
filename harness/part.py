"""A region of one output beside what is right there, and what a statement about it is. For the reference ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from harness.numerics import Judged
from harness.regions import Region
from harness.sources import Sources

MOST = 0.95
"""Share of a region's wrong elements for which a statement must hold."""
RESIDUAL = 0.05
"""How much of the output, in RMS, a linear combination may leave unexplained."""
FEW = 64
"""With fewer elements a fit means nothing."""


@dataclass(frozen=True)
class Fact:
    """One statement on a region: `cause`, and `text`, which may have `{peer}` for a rank."""

    cause: str
    text: str
    evidence: str = ""
    certain: bool = True
    peer: int | None = None


@dataclass
class Part:
    """A region of one output: what is there (`out`), what is right (`truth`), which elements are wrong, all float64."""

    raw: torch.Tensor
    out: torch.Tensor
    truth: torch.Tensor
    bad: torch.Tensor
    allowed: float
    region: Region | None
    sources: Sources

    @classmethod
    def of(cls, judged: Judged, raw: torch.Tensor, region: Region | None, sources: Sources) -> Part:
        index = region.index if region and region.index else ...
        return cls(
            raw=(torch.view_as_real(raw) if raw.is_complex() else raw)[index],
            out=judged.out.double()[index],
            truth=judged.truth.double()[index],
            bad=judged.bad[index],
            allowed=judged.bound.max_error,
            region=region,
            sources=sources,
        )

    def share(self, holds: torch.Tensor) -> float:
        """Of the wrong elements."""
        return float(holds[self.bad].double().mean())

    def like(self, other: torch.Tensor) -> float:
        """Share of the wrong elements that are as `other` (of the region) has them."""
        return self.share((self.out - other).abs() <= self.allowed)

    def at(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same region of a tensor of the output's shape."""
        index: Any = self.region.index if self.region and self.region.index else ...
        return tensor[index].double()

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole output."""
        right = self.sources.rights[self.sources.rank] if self.sources.rights else None
        return tuple(right.shape) if right is not None else tuple(self.out.shape)


def norm(values: torch.Tensor) -> float:
    """Euclidean, in float64."""
    return float(torch.linalg.vector_norm(values.double()))
