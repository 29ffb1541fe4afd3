"""What wrong values are: never written, another rank's, the former call's, some ranks' parts of a sum, scaled, rounded.

For the reference ranks.
"""

from __future__ import annotations

import torch

from harness import regions
from harness.mixtures import rows_of_parts
from harness.numerics import Judged
from harness.part import Fact, Part
from harness.regions import Region
from harness.sources import Sources
from harness.statements import explain as say
from harness.statements import imprecise, unlike

_MAX_AXES = 4
"""Axes along which what is wrong everywhere is looked at chunk by chunk."""


def explain(judged: Judged, raw: torch.Tensor, sources: Sources) -> list[tuple[Region, Fact]]:
    """What the wrong elements of one output tensor are, by region. `raw`: the output as it came."""
    return [
        found
        for region in regions.find(judged.inaccurate(), sources.world_size)
        for found in _explain_region(judged, raw, region, sources)
    ]


def _explain_region(judged: Judged, raw: torch.Tensor, region: Region, sources: Sources) -> list[tuple[Region, Fact]]:
    part = Part.of(judged, raw, region, sources)
    fact = say(part)
    if fact is not None:
        return [(region, fact)]
    if rows := rows_of_parts(part):
        return rows
    if region.text == "everything":
        for pieces in regions.chunks(judged.bad.shape, sources.world_size)[:_MAX_AXES]:
            each = [(piece, say(Part.of(judged, raw, piece, sources))) for piece in pieces]
            if sum(fact is not None for _, fact in each) * 2 > len(each):
                return [(piece, fact or _unknown(judged, raw, piece, sources)) for piece, fact in each]
    return [(region, _unknown(judged, raw, region, sources))]


def _unknown(judged: Judged, raw: torch.Tensor, region: Region, sources: Sources) -> Fact:
    part = Part.of(judged, raw, region, sources)
    return next(iter(imprecise(part)), None) or unlike(part)
