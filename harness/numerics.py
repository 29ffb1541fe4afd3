"""Is an output right? Judged against the reference evaluated in float64, so a more accurate answer never fails.

For arithmetic, a candidate passes if its error against the oracle is within a small factor of the reference's own
error in the run's dtype, at the maximum and in RMS, never below a few roundings at the output's own scale. The RMS
gate is what catches a cheaper number format: int8 on the wire broke a maximum-error bound on one element in a thousand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from harness.types import Check, Difference, Mismatch

# Factors over the reference's own error: another summation order of the same length may be that much worse.
MAX_FACTOR, RMS_FACTOR = 2.0, 1.5
# Factors over one rounding of the exact result: where the reference happens to round once, a chain that rounds at
# each of a few hops is still honest work in the run's dtype.
MAX_ROUNDINGS, RMS_ROUNDINGS = 4.0, 2.5
PKB_ATOL = PKB_RTOL = 1e-2
_SHOWN = 6


@dataclass(frozen=True)
class _Bound:
    max_error: float
    rms_error: float


def compare(
    output: Any, expected: Any, oracle: Any, *, exact: bool, check: Check, trial: int, world_size: int
) -> list[Mismatch]:
    """Differences of each output tensor that is wrong; the structure has been checked before."""
    found = []
    for path, out, ref, true in _pairs(output, expected, oracle, "out"):
        mismatch = _compare_tensor(path, out, ref, true, exact, check, trial, world_size)
        if mismatch is not None:
            found.append(mismatch)
    return found


def _pairs(output: Any, expected: Any, oracle: Any, path: str) -> list[tuple[str, Any, Any, Any]]:
    if isinstance(expected, torch.Tensor):
        return [(path, output, expected, oracle)]
    if isinstance(expected, (tuple, list)):
        return [p for i, e in enumerate(expected) for p in _pairs(output[i], e, oracle[i], f"{path}[{i}]")]
    if isinstance(expected, dict):
        return [p for k, e in expected.items() for p in _pairs(output[str(k)], e, oracle[k], f"{path}[{k!r}]")]
    # A plain value is compared as a scalar tensor, exactly.
    if output == expected:
        return []
    as_number = lambda v: torch.tensor(float(v) if isinstance(v, (int, float)) else float("nan"))  # noqa: E731
    return [(path, as_number(output), as_number(expected), as_number(expected))]


def _compare_tensor(
    path: str,
    out: torch.Tensor,
    expected: torch.Tensor,
    oracle: torch.Tensor,
    exact: bool,
    check: Check,
    trial: int,
    world_size: int,
) -> Mismatch | None:
    if out.numel() == 0:
        return None
    if check == "pkb":
        truth, error = expected.double(), (out.double() - expected.double()).abs()
        bad = ~(error <= PKB_ATOL + PKB_RTOL * out.double().abs()) & (out != expected)
        bound = _Bound(PKB_ATOL, float("inf"))
    elif exact or not expected.is_floating_point():
        truth, error = expected.double(), (out.double() - expected.double()).abs()
        bad = (out != expected) & ~((out != out) & (expected != expected))
        bound = _Bound(0.0, 0.0)
    else:
        truth, error = oracle.double(), (out.double() - oracle.double()).abs()
        bound = _rounding_bound(expected, truth)
        bad = ~(error <= bound.max_error) & (out.double() != truth)  # NaN compares false, so it is bad
    finite = torch.nan_to_num(error, nan=0.0, posinf=0.0)
    rms = _rms(finite)
    wrong = int(bad.sum())
    if wrong == 0 and (check == "pkb" or rms <= bound.rms_error or bound.rms_error == 0.0):
        return None
    shown = bad if wrong else error >= error.max()
    indices = shown.reshape(-1).nonzero()[:_SHOWN].reshape(-1)
    return Mismatch(
        trial=trial,
        output=path,
        shape=tuple(out.shape),
        wrong=wrong,
        total=out.numel(),
        nonfinite=int((~torch.isfinite(out.double()) & torch.isfinite(truth)).sum()),
        max_error=float(finite.max()),
        max_allowed=bound.max_error,
        rms_error=rms,
        rms_allowed=bound.rms_error,
        first=tuple(
            Difference(
                index=_unravel(int(i), out.shape),
                got=float(out.reshape(-1)[i]),
                expected=float(truth.reshape(-1)[i]),
            )
            for i in indices
        ),
        chunks_wrong=tuple(float(c.double().mean()) for c in bad.chunk(world_size)) if bad.dim() else (),
    )


def _rounding_bound(expected: torch.Tensor, truth: torch.Tensor) -> _Bound:
    """Largest allowed error of any element and in RMS over the tensor."""
    unit = torch.finfo(expected.dtype).eps / 2
    own = torch.nan_to_num((expected.double() - truth).abs())
    rounding = torch.nan_to_num((truth.to(expected.dtype).double() - truth).abs())
    scale = torch.nan_to_num(truth, posinf=0.0, neginf=0.0).abs()
    # Half of what one rounding costs on average at this scale: a floor for outputs that happen to be representable.
    floor_rms = max(_rms(rounding), 0.25 * unit * _rms(scale))
    return _Bound(
        max_error=max(MAX_FACTOR * float(own.max()), MAX_ROUNDINGS * unit * float(scale.max())),
        rms_error=max(RMS_FACTOR * _rms(own), RMS_ROUNDINGS * floor_rms),
    )


def _rms(values: torch.Tensor) -> float:
    return float(values.square().mean().sqrt())


def _unravel(index: int, shape: torch.Size) -> tuple[int, ...]:
    position: list[int] = []
    for size in reversed(shape):
        position.append(index % size)
        index //= size
    return tuple(reversed(position))
