"""What is said of a region's wrong values. Each statement is tested against the actual numbers and holds for nearly all
wrong elements of the region, or it is not made. For the reference ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from harness import copies, mixtures
from harness.diagnosis import AFTER, EARLY, NEAR
from harness.part import FEW, MOST, Fact, Part, norm
from harness.platforms import DIRTY

_FORMATS = (
    ("float8 (e5m2)", torch.float8_e5m2),
    ("float8 (e4m3)", torch.float8_e4m3fn),
    ("bfloat16", torch.bfloat16),
    ("float16", torch.float16),
)
_NOISE = ((3e-5, "float16"), (6e-4, "tf32 or float16 sums"), (6e-3, "bfloat16"), (2e-2, "int8"), (1e-1, "8-bit floats"))
"""Relative RMS error up to which it is typical of a format in between."""


def explain(part: Part) -> Fact | None:
    """The first statement that holds."""
    if not bool(part.bad.any()):
        return None
    fact = next((fact for test in _TESTS if (fact := test(part)) is not None), None)
    if fact is None or fact.evidence:
        return fact
    return replace(fact, evidence=f"true of at least {MOST:.0%} of the {int(part.bad.sum())} wrong elements there")


def never_written(part: Part) -> Fact | None:
    """What the harness left in free memory is still there."""
    bits = part.raw.contiguous().view(torch.uint8).reshape(*part.raw.shape, -1) if part.raw.dim() else None
    if bits is None or part.raw.dtype is torch.bool:
        return None
    filled = torch.stack([(bits == byte).all(-1) for byte in DIRTY]).any(0)
    if part.raw.element_size() == 1 or part.share(filled) < MOST:
        return None
    return Fact("never written", "never written", "still holds what the harness fills free memory with")


def not_finite(part: Part) -> Fact | None:
    """NaN or infinite where it should not be."""
    nan, infinite = part.share(part.out.isnan()), part.share(part.out.isinf())
    if nan >= MOST:
        given = any(bool(t.isnan().any()) for inputs in part.sources.inputs for _, t in inputs)
        known = "no input is NaN, and it is not what free memory is filled with: computed here"
        return Fact("NaN", "NaN where finite values are right", "" if given or not part.sources.inputs else known)
    if infinite >= MOST:
        return Fact("infinity", "infinite where finite values are right: an overflow")
    if nan + infinite >= MOST:
        return Fact("NaN", "NaN or infinite where finite values are right: an overflow, then inf - inf or inf / inf")
    return None


def constant(part: Part) -> Fact | None:
    """One and the same number."""
    value = float(part.out[part.bad].median())
    if part.share(part.out == value) < MOST or part.bad.sum() < 4:
        return None
    if value == 0:
        return Fact(
            "zero", "zero: cleared and then never added to or copied to, or never written where fresh memory is zero"
        )
    return Fact("constant", f"all {value:.6g}")


def of_other_call(part: Part) -> Fact | None:
    """Values of one other call, or a mixture of several."""
    others = [(name, part.at(t)) for name, t in part.sources.others if t.shape == part.shape]
    near = [(name, ((part.out - other).abs() <= part.allowed)[part.bad]) for name, other in others]
    for name, like in near:
        if float(like.double().mean()) >= MOST:
            return _other_call(name)
    if not near or float(torch.stack([like for _, like in near]).any(0).double().mean()) < MOST:
        return None
    said = [f"{float(like.double().mean()):.0%} those of {name}" for name, like in near if bool(like.any())]
    return Fact("torn", f"a mixture of other calls' values: {', '.join(said)}")


def imprecise(part: Part) -> Iterator[Fact]:
    """Right but for rounding, and what rounds so."""
    fine = part.out.isfinite() & part.truth.isfinite()
    out, truth = part.out[fine], part.truth[fine]
    if len(out) < 8 or norm(truth) == 0:
        return
    error = out - truth
    relative = norm(error) / norm(truth)
    # Rounding errors hang together neither with what is right nor with each other.
    along = abs(float(error @ truth)) / (norm(error) * norm(truth) + 1e-30)
    drift = abs(float(error.mean())) * math.sqrt(len(error)) / (norm(error) + 1e-30)
    if relative > 0.15 or max(along, drift) > 0.1 + 4 / math.sqrt(len(error)):
        return
    stored = part.raw[fine]
    for name, dtype in _FORMATS if part.raw.dtype in (torch.float32, torch.float64) else _FORMATS[:2]:
        if stored.is_floating_point() and bool((stored.to(dtype).to(stored.dtype) == stored).all()):
            yield Fact(
                "low precision", f"rounded to {name}", f"every value is a {name} number; relative error {relative:.2g}"
            )
            return
    typical = next((name for limit, name in _NOISE if relative <= limit), "something coarse")
    yield Fact(
        "low precision",
        f"close to what is right: a relative error of {relative:.2g}, as of {typical} or of a constant slightly wrong",
        certain=False,
    )  # fmt: skip


def unlike(part: Part) -> Fact:
    """How far it is from what is right, where nothing else can be said."""
    fine = part.out.isfinite() & part.truth.isfinite()
    out, truth = part.out[fine], part.truth[fine]
    if len(out) < FEW or norm(out) == 0 or norm(truth) == 0:
        return Fact("unknown", "like nothing that was tried", certain=False)
    most = float((out - truth).abs().max())
    if most <= NEAR * part.allowed:
        text = "hardly wrong: as of sums in too narrow a type or too long a chain, or of a constant slightly wrong"
        evidence = f"no error is above {most / part.allowed:.2f} times what is allowed"
        return Fact("low precision", text, evidence, certain=False)
    agree = float(out @ truth) / (norm(out) * norm(truth))
    size = norm(out) / norm(truth)
    text = "unrelated to what is right" if abs(agree) < 0.1 else "partly right: terms are missing or others added"
    return Fact("unknown", text, f"correlation {agree:.2f}, size {size:.2f} times the right one", certain=False)


def _other_call(name: str) -> Fact:
    """Of wrong values that are right for another call."""
    if name.startswith(AFTER):
        return Fact("overtaken", f"what is right for {name}: the next call has overwritten it before it was read")
    if name == EARLY:
        return Fact("stale", f"what was right for {name}")
    return Fact("stale", f"what was right for {name}: kept since then, or read before this call had written it")


_TESTS: tuple[Callable[[Part], Fact | None], ...] = (
    never_written, not_finite, constant, of_other_call, mixtures.summed, copies.own, copies.of_peer, mixtures.combined,
    mixtures.scaled, mixtures.row_factors, mixtures.without, copies.order, copies.elsewhere, mixtures.offset,
)  # fmt: skip
"""The more specific first."""
