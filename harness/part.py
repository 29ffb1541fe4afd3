"""A region of one output beside what is right there, and what a statement about it is. For the reference ranks."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness.numerics import Judged
from harness.regions import Region
from harness.sources import Sources

MOST = 0.95
"""Share of a region's wrong elements for which a statement must hold."""
RESIDUAL = 0.05
"""How much of the output, in RMS, a linear combination may leave unexplained."""
_MOST_ELEMENTS = 1 << 20
"""Of a region with more elements some rows stand for all."""
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
    index: tuple[slice, ...]
    region: Region
    sources: Sources

    @classmethod
    def of(cls, judged: Judged, raw: torch.Tensor, region: Region, sources: Sources) -> Part:
        """Of very large regions every n-th row stands for all."""
        index: tuple[slice, ...] = region.index
        rows = judged.bad[index].shape[0] if index else 1
        step = -(-judged.bad[index].numel() // _MOST_ELEMENTS) if index and index[0].step in (None, 1) else 1
        if 1 < step < rows:
            index = (slice(index[0].start, index[0].stop, step), *index[1:])
        return cls(
            raw=(torch.view_as_real(raw) if raw.is_complex() else raw)[index],
            out=judged.out[index].double(),
            truth=judged.truth[index].double(),
            bad=judged.bad[index],
            allowed=judged.bound.max_error,
            index=index,
            region=region,
            sources=sources,
        )

    @property
    def thinned(self) -> bool:
        """Whether there are fewer rows here than in the region."""
        return self.index != self.region.index

    def share(self, holds: torch.Tensor) -> float:
        """Of the wrong elements."""
        return float(holds[self.bad].double().mean())

    def like(self, other: torch.Tensor) -> float:
        """Share of the wrong elements that are as `other` (of the region) has them."""
        # What is right may lie as near: a likeness explains only what comes much nearer to it.
        reach = torch.clamp_max((self.out - self.truth).abs() / 4, self.allowed)
        return self.share(((self.out - other).abs() <= reach) | (self.out == other))

    def at(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same region of a tensor of the output's shape."""
        return tensor[self.index].double()

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole output."""
        right = self.sources.rights[self.sources.rank] if self.sources.rights else None
        return tuple(right.shape) if right is not None else tuple(self.out.shape)


def norm(values: torch.Tensor) -> float:
    """Euclidean, in float64."""
    return float(torch.linalg.vector_norm(values.double()))
