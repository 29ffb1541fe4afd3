"""Is an output right? Judged against the reference evaluated in float64, so a more accurate answer never fails.

For arithmetic, a candidate passes if its error against the oracle is within a small factor of the reference's own
error in the run's dtype, at the maximum and in RMS, never below a few roundings at the output's own scale. The RMS
gate is what catches a cheaper number format: int8 on the wire broke a maximum-error bound on one element in a thousand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from harness.types import Check, Difference, Mismatch

# 16-bit types. Over the reference's own error: another order of the same roundings may be that much worse. Over one
# rounding of the exact result: where the reference happens to round once, a chain that rounds at each hop is still
# honest work in the run's dtype; its RMS grows with the number of ranks as in `_chain`.
MAX_FACTOR, RMS_FACTOR = 2.0, 1.2
MAX_ROUNDINGS, RMS_ROUNDINGS, CHAIN_MARGIN = 4.0, 2.0, 1.1
# float32 and float64: adding all ranks' terms in one long loop is honest and up to 10 times worse than adding blocks
# (measured, 8 ranks, K = 8 x 512); the mildest cheat, fp16 from the peers only, is 500 times worse.
WIDE_FACTOR = 32.0
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
    # A plain value is compared as a float64 scalar; what is not a number is shown as NaN against 0, which never match.
    if output == expected:
        return []
    numbers = isinstance(output, (int, float)) and isinstance(expected, (int, float))
    pair = [torch.tensor(float(v), dtype=torch.float64) for v in ((output, expected) if numbers else ("nan", 0))]
    return [(path, pair[0], pair[1], pair[1])]


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
    if out.is_complex():
        out, expected, oracle = (torch.view_as_real(t.resolve_conj()) for t in (out, expected, oracle))
    if check == "pkb":
        truth, error = expected.double(), (out.double() - expected.double()).abs()
        # An infinite output would allow any error: as torch.isclose does, accept it only where it is equal.
        close = error.isfinite() & (error <= PKB_ATOL + PKB_RTOL * out.double().abs())
        bad = ~close & (out.double() != truth)
        bound = _Bound(PKB_ATOL, float("inf"))
    elif exact or not expected.is_floating_point():
        truth, error = expected.double(), (out.double() - expected.double()).abs()
        bad = (_bits(out) != _bits(expected)) & ~((out != out) & (expected != expected))
        bound = _Bound(0.0, 0.0)
    else:
        # Beyond the dtype's range the right answer is infinite.
        rounded = oracle.to(expected.dtype).double()
        truth = torch.where(rounded.isinf(), rounded, oracle.double())
        error = (out.double() - truth).abs()
        bound = _rounding_bound(expected, truth, world_size)
        bad = ~(error <= bound.max_error) & (out.double() != truth)  # NaN compares false, so it is bad
        # Where the reference itself overflows or divides zero by zero, doing as it does is right too.
        ref = expected.double()
        bad &= ref.isfinite() | ((out.double() != ref) & ~(out.isnan() & ref.isnan()))
    finite = _finite(error)
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
        nonfinite=int((~torch.isfinite(out.double()) & torch.isfinite(truth) & bad).sum()),
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
        chunks_wrong=tuple(float(c.double().mean()) if c.numel() else 0.0 for c in bad.tensor_split(world_size))
        if bad.dim()
        else (),
    )


def _rounding_bound(expected: torch.Tensor, truth: torch.Tensor, world_size: int) -> _Bound:
    """Largest allowed error of any element and in RMS over the tensor."""
    unit = torch.finfo(expected.dtype).eps / 2
    # Elements where the reference or the truth is not finite say nothing about rounding.
    own = _finite((expected.double() - truth).abs())
    rounding = _finite((truth.to(expected.dtype).double() - truth).abs())
    scale = _finite(truth.abs())
    # Half of what one rounding costs on average at this scale: a floor for outputs that happen to be representable.
    floor_rms = max(_rms(rounding), 0.25 * unit * _rms(scale))
    if expected.dtype in (torch.float32, torch.float64):
        return _Bound(
            max_error=max(WIDE_FACTOR * float(own.max()), MAX_ROUNDINGS * unit * float(scale.max())),
            rms_error=max(WIDE_FACTOR * _rms(own), RMS_ROUNDINGS * floor_rms),
        )
    # The RMS of a few elements scatters; of many it does not.
    scatter = 1 + 4 / math.sqrt(expected.numel())
    return _Bound(
        max_error=max(MAX_FACTOR * float(own.max()), MAX_ROUNDINGS * unit * float(scale.max())),
        rms_error=scatter * max(RMS_FACTOR * _rms(own), max(RMS_ROUNDINGS, _chain(world_size)) * floor_rms),
    )


def _chain(world_size: int) -> float:
    """RMS error of a sum over ranks that is rounded after each addition, in units of one rounding of the result: the
    partial sum of k equal terms has k/W of the result's variance."""
    return CHAIN_MARGIN * math.sqrt(max((world_size + 3) / 2 - 1 / world_size, 0.0))


def _finite(magnitudes: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(magnitudes, nan=0.0, posinf=0.0)


def _bits(values: torch.Tensor) -> torch.Tensor:
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return values.contiguous().view(kinds[values.element_size()])


def _rms(values: torch.Tensor) -> float:
    return float(values.square().mean().sqrt())


def _unravel(index: int, shape: torch.Size) -> tuple[int, ...]:
    position: list[int] = []
    for size in reversed(shape):
        position.append(index % size)
        index //= size
    return tuple(reversed(position))
