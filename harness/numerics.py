"""Is an output right? Judged against the reference evaluated in float64, so a more accurate answer never fails.

For arithmetic, a candidate passes if its error against the oracle is within a small factor of the reference's own
error in the run's dtype, at the maximum and in RMS, never below a few roundings at the output's own scale. The RMS
gate is what catches a cheaper number format: int8 on the wire broke a maximum-error bound on one element in a thousand.
Both are bounds over the tensor, where large rows hide small ones, so each row's typical error is bounded as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from harness.types import Check, Difference, Mismatch

# 16-bit types. Over the reference's own error: another order of the same roundings may be that much worse. Over one
# rounding of the exact result: where the reference happens to round once, a chain that rounds at each hop is still
# honest work in the run's dtype; its RMS grows with the number of ranks as in `_chain`. The margin also covers, up to
# 8 ranks, a chain that begins with a rank whose part outweighs the others.
MAX_FACTOR, RMS_FACTOR = 2.0, 1.2
MAX_ROUNDINGS, RMS_ROUNDINGS, CHAIN_MARGIN = 4.0, 2.0, 1.2
# float32 and float64: adding all ranks' terms in one long loop is honest and up to 10 times worse than adding blocks
# (measured, 8 ranks, K = 8 x 512); the mildest cheat, fp16 from the peers only, is 500 times worse.
WIDE_FACTOR = 32.0
# Of a scalar the reference's error may be zero by luck; in float64 it always is, as the oracle is the reference. The
# next cheaper format is off by 8192 roundings of float32, and by 5 x 10^8 of float64.
WIDE_ROUNDINGS = {torch.float32: 64.0, torch.float64: 1024.0}
# Rows have wider bounds than the tensor: there are up to millions of them, and another order of adding may be worse in
# some rows than in others. The typical error of a row of n roundings scatters by 1/sqrt(n) of itself (measured), so
# ROW_SCATTER is in standard deviations.
ROW_FACTOR, ROW_WIDE_FACTOR, ROW_SCATTER, ROW_PEAK = 1.5, 128.0, 8.0, 6.0
ROW_ELEMENTS = 256
# A number below float32's normal range may be flushed to zero.
FLUSHED = 2.0**-126
PKB_ATOL = PKB_RTOL = 1e-2
_SHOWN = 6
_PIECE = 1 << 15
"""Elements, of 8 bytes each and a few temporaries, that are in a core's cache."""


@dataclass(frozen=True)
class Bound:
    max_error: float
    rms_error: float
    row_errors: torch.Tensor | None = None
    """Largest allowed typical error of each row."""


def compare(
    output: Any,
    expected: Any,
    oracle: Any,
    *,
    exact: bool,
    check: Check,
    trial: int,
    world_size: int,
    unsure: Any = None,
) -> list[Mismatch]:
    """Differences of each output tensor that is wrong; the structure has been checked before. `unsure`: in the output's
    structure masks of elements that are not judged, or None."""
    found = []
    output, expected, oracle = (sure(value, unsure) for value in (output, expected, oracle))
    for path, out, ref, true in pairs(output, expected, oracle, "out"):
        mismatch = _compare_tensor(path, out, ref, true, exact, check, trial, world_size)
        if mismatch is not None:
            found.append(mismatch)
    return found


def likeness(output: Any, right: tuple[Any, Any, Any], other: tuple[Any, Any, Any], **how: Any) -> tuple[bool, float]:
    """Of an output that is not `right` (expected, oracle, unsure): whether it is `other` as a whole, and the share of
    its wrong elements that are as `other` has them. `how` as for `compare`."""
    whole = not compare(output, *other[:2], unsure=other[2], **how)
    wrong = like = 0
    masks = right[2]

    def judged(of: tuple[Any, Any, Any]) -> list[tuple[str, Any, Any, Any]]:
        return pairs(sure(output, masks), sure(of[0], masks), sure(of[1], masks), "out")

    for (_, out, ref, true), (_, _, other_ref, other_true) in zip(judged(right), judged(other), strict=True):
        if ref.shape == other_ref.shape:
            settings = (how["exact"], how["check"], how["world_size"])
            bad = judge(out, ref, true, *settings).bad
            wrong += int(bad.sum())
            like += int((bad & ~judge(out, other_ref, other_true, *settings).bad).sum())
    return whole, like / wrong if wrong else 0.0


def sure(value: Any, unsure: Any) -> Any:
    """The same with zeros at the elements that are not judged."""
    if unsure is None:
        return value
    if isinstance(value, torch.Tensor):
        # Where shapes follow the inputs, other inputs' masks do not fit. (No masked_fill: float8 has none.)
        return torch.where(unsure, torch.zeros_like(value), value) if unsure.shape == value.shape else value
    if isinstance(value, (tuple, list)):
        return [sure(item, mask) for item, mask in zip(value, unsure, strict=True)]
    if isinstance(value, dict):
        return {key: sure(item, unsure.get(str(key))) for key, item in value.items()}
    return value


def _float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:  # an integer of hundreds of digits
        return math.inf if number > 0 else -math.inf


def pairs(output: Any, expected: Any, oracle: Any, path: str) -> list[tuple[str, Any, Any, Any]]:
    """(path, output, expected, oracle) of each tensor of a structure, and of each plain value that is wrong."""
    if isinstance(expected, torch.Tensor):
        return [(path, output, expected, oracle)]
    if isinstance(expected, (tuple, list)):
        return [p for i, e in enumerate(expected) for p in pairs(output[i], e, oracle[i], f"{path}[{i}]")]
    if isinstance(expected, dict):
        return [p for k, e in expected.items() for p in pairs(output[str(k)], e, oracle[k], f"{path}[{k!r}]")]
    # A plain number is compared as a float64 scalar; of other plain values none that is wrong comes here.
    if output == expected:
        return []
    pair = [torch.tensor(_float(value), dtype=torch.float64) for value in (output, expected)]
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
    if _plainly_right(out, expected, oracle, exact, check):
        return None
    judged = judge(out, expected, oracle, exact, check, world_size)
    if not judged.wrong:
        return None
    out, truth, bound, bad = judged.out, judged.truth, judged.bound, judged.bad
    finite = _finite(judged.error)
    rms = _rms(finite)
    wrong, rows_wrong = int(bad.sum()), 0
    if wrong == 0:
        excess = judged.excess()
        if excess is not None and float(excess.max()) > 1:
            bad, finite, rms, bound = _worst_row(finite, excess)
            wrong, rows_wrong = int(bad.sum()), int((excess > 1).sum())
    shown = bad if wrong else finite >= finite.max()
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
        rows_wrong=rows_wrong,
        first=tuple(
            Difference(
                index=unravel(int(i), out.shape),
                got=float(out.reshape(-1)[i]),
                expected=float(truth.reshape(-1)[i]),
            )
            for i in indices
        ),
        chunks_wrong=tuple(float(c.double().mean()) if c.numel() else 0.0 for c in bad.tensor_split(world_size))
        if bad.dim()
        else (),
    )


def _plainly_right(out: torch.Tensor, expected: torch.Tensor, oracle: torch.Tensor, exact: bool, check: Check) -> bool:
    """Whether `judge` is sure to find nothing wrong, told by less work: equal bits, or an error within the least that
    any bound can be, whatever the reference's own error is. What is not told here is judged.

    On a CPU in pieces that stay in its caches: fresh memory for whole tensors costs several times the arithmetic."""
    if check == "pkb" or out.numel() == 0 or out.is_complex():
        return False
    if exact or not expected.is_floating_point() or expected.element_size() == 1:
        return torch.equal(_bits(out), _bits(expected))
    unit = torch.finfo(expected.dtype).eps / 2
    wide = WIDE_ROUNDINGS.get(expected.dtype)
    most, mean, row = (wide, 0.25 * wide, wide) if wide else (MAX_ROUNDINGS, 0.25 * RMS_ROUNDINGS, 1.0)
    length = _row_length(out.shape)
    rows = max(1, _PIECE // length) if out.device.type == "cpu" else out.numel() // length
    row *= unit * (1 + ROW_SCATTER / math.sqrt(length))
    pieces = []
    for got, true in zip(out.reshape(-1, length).split(rows), oracle.reshape(-1, length).split(rows), strict=True):
        scale = true.double()
        error = (got.double() - scale).abs_()
        scale = scale.abs()
        beyond = error.sqrt().mean(-1).square_() > row * scale.sqrt().mean(-1).square_()
        norms = torch.linalg.vector_norm(error), torch.linalg.vector_norm(scale)
        pieces.append(torch.stack([error.max(), scale.max(), *norms, beyond.sum()]))
    errors, scales, error_norms, scale_norms, beyond_rows = torch.stack(pieces).cpu().unbind(1)
    # Written so that NaN says no. Beyond the dtype's range the right answer is infinite: judged.
    return bool(
        scales.max() <= torch.finfo(expected.dtype).max
        and errors.max() <= most * unit * scales.max()
        and error_norms.norm() <= mean * unit * scale_norms.norm()
        and beyond_rows.sum() == 0
    )


@dataclass(frozen=True)
class Judged:
    """Elements of one tensor against what is right; complex ones as pairs of real ones."""

    out: torch.Tensor
    truth: torch.Tensor
    error: torch.Tensor
    bound: Bound
    bad: torch.Tensor

    @property
    def wrong(self) -> bool:
        """Whether the tensor is: an element, the error's RMS, or a row."""
        if self.bad.numel() == 0:
            return False
        if bool(self.bad.any()) or _rms(_finite(self.error)) > self.bound.rms_error:
            return True
        excess = self.excess()
        return excess is not None and float(excess.max()) > 1

    def excess(self) -> torch.Tensor | None:
        """By how much each row is beyond its own bound; None where rows have none."""
        return None if self.bound.row_errors is None else _typical(_finite(self.error)) / self.bound.row_errors

    def inaccurate(self) -> torch.Tensor:
        """The elements that are wrong, or, if no single one is, those of the rows that are; all if no row is either."""
        excess = self.excess()
        if bool(self.bad.any()) or excess is None or not bool((excess > 1).any()):
            return self.bad if bool(self.bad.any()) else torch.ones_like(self.bad)
        rows = (excess > 1)[:, None].expand(-1, self.bad.numel() // excess.numel())
        return rows.reshape(self.bad.shape)


def judge(
    out: torch.Tensor, expected: torch.Tensor, oracle: torch.Tensor, exact: bool, check: Check, world_size: int
) -> Judged:
    """Every element of one tensor."""
    if out.numel() == 0:
        return Judged(out, oracle.double(), out.double(), Bound(0.0, 0.0), torch.zeros_like(out, dtype=torch.bool))
    if out.is_complex():
        out, expected, oracle = (torch.view_as_real(t.resolve_conj()) for t in (out, expected, oracle))
    if check == "pkb":
        truth, error = expected.double(), (out.double() - expected.double()).abs_()
        # An infinite output would allow any error: as torch.isclose does, accept it only where it is equal.
        close = error.isfinite() & (error <= PKB_ATOL + PKB_RTOL * out.double().abs())
        bad = ~close & (out.double() != truth)
        bound = Bound(PKB_ATOL, float("inf"))
    elif exact or not expected.is_floating_point() or expected.element_size() == 1:
        # An 8-bit float is a quantisation: right or wrong, but for what the problem itself is unsure of.
        truth, error = expected.double(), (out.double() - expected.double()).abs_()
        bad = (_bits(out) != _bits(expected)) & ~((out != out) & (expected != expected))
        bound = Bound(0.0, 0.0)
    else:
        # Beyond the dtype's range the right answer is infinite.
        rounded = oracle.to(expected.dtype).double()
        truth = torch.where(rounded.isinf(), rounded, oracle.double())
        error = (out.double() - truth).abs_()
        bound = _rounding_bound(expected, truth, world_size)
        bad = ~(error <= bound.max_error) & (out.double() != truth)  # NaN compares false, so it is bad
        # Where the reference itself overflows or divides zero by zero, doing as it does is right too.
        ref = expected.double()
        bad &= ref.isfinite() | ((out.double() != ref) & ~(out.isnan() & ref.isnan()))
    return Judged(out, truth, error, bound, bad)


def _rounding_bound(expected: torch.Tensor, truth: torch.Tensor, world_size: int) -> Bound:
    """Largest allowed error of any element, in RMS over the tensor, and of each row."""
    unit = torch.finfo(expected.dtype).eps / 2
    rounding_rms = _rms(_finite((truth.to(expected.dtype).double() - truth).abs_()))
    # Elements where the reference or the truth is not finite say nothing about rounding.
    own = _finite((expected.double() - truth).abs_())
    scale = _finite(truth.abs())
    # Half of what one rounding costs on average at this scale: a floor for outputs that happen to be representable.
    floor_rms = max(rounding_rms, 0.25 * unit * _rms(scale))
    if roundings := WIDE_ROUNDINGS.get(expected.dtype):
        return Bound(
            max_error=max(WIDE_FACTOR * float(own.max()), roundings * unit * float(scale.max())),
            rms_error=max(WIDE_FACTOR * _rms(own), roundings * floor_rms),
            row_errors=_row_bound(own, scale, ROW_WIDE_FACTOR, roundings * unit, expected.dtype),
        )
    # The RMS of a few elements scatters, and that of many where a few are much larger than the others.
    scatter = 1 + 4 / math.sqrt(_dominant(scale))
    return Bound(
        max_error=max(MAX_FACTOR * float(own.max()), MAX_ROUNDINGS * unit * float(scale.max())),
        rms_error=scatter * max(RMS_FACTOR * _rms(own), max(RMS_ROUNDINGS, _chain(world_size)) * floor_rms),
        # A rounding's typical error is a third of `unit`, and a chain over 8 ranks at most sqrt(7) roundings.
        row_errors=_row_bound(own, scale, ROW_FACTOR, max(1.0, math.sqrt(world_size / 8)) * unit, expected.dtype),
    )


def _row_bound(
    own: torch.Tensor, scale: torch.Tensor, factor: float, relative: float, dtype: torch.dtype
) -> torch.Tensor:
    scatter = 1 + ROW_SCATTER / math.sqrt(_row_length(own.shape))
    own, scale = _typical(own), _typical(scale)
    # In some rows the reference is lucky: allow each what is usual.
    usual = (own / scale).nan_to_num(nan=0.0, posinf=0.0).median()
    info = torch.finfo(dtype)
    subnormal = max(info.smallest_normal * info.eps, FLUSHED)
    return scatter * torch.maximum(factor * torch.maximum(own, usual * scale), relative * scale).clamp_min(subnormal)


def _typical(magnitudes: torch.Tensor) -> torch.Tensor:
    """Of each row: the square of the mean square root. Unlike the RMS, a few outliers hardly move it."""
    length = _row_length(magnitudes.shape)
    # vector_norm of order 1/2 needs no temporary, but computes powers: ten times as long.
    return magnitudes.reshape(-1, length).sqrt().mean(-1).square_()


def _row_length(shape: torch.Size) -> int:
    """Elements of a row: the last axis, and as many axes before it as make enough elements to speak of an average."""
    length = 1
    for size in reversed(shape):
        if length >= ROW_ELEMENTS:
            break
        length *= size
    return length


def _worst_row(error: torch.Tensor, excess: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float, Bound]:
    """Where rows are out of bounds and no single element is: the rows' outstanding elements, and error and bound of the
    worst row. The bound is stated as the RMS at which an error so distributed would pass."""
    rows = error.reshape(excess.numel(), -1)
    allowed = rows.square().mean(-1).sqrt() / excess
    bad = (rows > ROW_PEAK * allowed[:, None]) & (excess > 1)[:, None]
    worst = int(excess.argmax())
    alone = torch.zeros_like(rows)
    alone[worst] = rows[worst]
    row_allowed = float(allowed[worst])
    bound = Bound(ROW_PEAK * row_allowed, row_allowed)
    return bad.reshape(error.shape), alone.reshape(error.shape), _rms(rows[worst]), bound


def _chain(world_size: int) -> float:
    """RMS error of a sum over ranks that is rounded after each addition, in units of one rounding of the result: the
    partial sum of k equal terms has k/W of the result's variance."""
    return CHAIN_MARGIN * math.sqrt(max((world_size + 3) / 2 - 1 / world_size, 0.0))


def _finite(magnitudes: torch.Tensor) -> torch.Tensor:
    """In place: a tensor may fill an eighth of the device's memory."""
    return magnitudes.nan_to_num_(nan=0.0, posinf=0.0)


def _bits(values: torch.Tensor) -> torch.Tensor:
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return values.contiguous().view(kinds[values.element_size()])


def _rms(values: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(values)) / math.sqrt(values.numel())


def _dominant(magnitudes: torch.Tensor) -> float:
    """How many equal elements would scatter as these do: one if one is by far the largest, a third of a normal draw."""
    squares = magnitudes.square()
    total, peak = float(squares.sum()), float(torch.linalg.vector_norm(squares))
    return (total / peak) ** 2 if peak else 1.0


def unravel(index: int, shape: torch.Size) -> tuple[int, ...]:
    """The position of an element, given its number in memory order."""
    position: list[int] = []
    for size in reversed(shape):
        position.append(index % size)
        index //= size
    return tuple(reversed(position))
