"""The floor under any candidate's time: what the busiest rank cannot avoid, at datasheet peaks and at measured ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.types import DType, FloorSource
from problems.spec import Work


@dataclass(frozen=True)
class Peaks:
    """Most that one device does. Dense rates of matrix products by their dtype; links per direction."""

    hbm_gbps: float
    link_gbps: float
    tflops: Mapping[DType, float]
    kernel_us: float = 0.0
    """No call is shorter."""
    signal_us: float = 0.0
    """No call that waits for another rank is shorter."""


@dataclass(frozen=True)
class Floors:
    """The fields of a `Measurement` that say how fast it could have been."""

    sol_us: float | None = None
    bound_by: str = ""
    sol_from: FloorSource = "datasheet"
    achievable_us: float | None = None
    achievable_bound_by: str = ""


def _nvidia(hbm_gbps: float, link_gbps: float, half: float, single: float, double: float) -> Peaks:
    return Peaks(hbm_gbps, link_gbps, {"bfloat16": half, "float16": half, "float32": single, "float64": double})


_DATASHEET = {
    "A100": _nvidia(2039, 300, 312, 19.5, 19.5),
    "H100": _nvidia(3350, 450, 989, 67, 67),
    "H200": _nvidia(4800, 450, 989, 67, 67),
    "B200": _nvidia(8000, 900, 2250, 75, 40),
}
"""Vendor datasheets, SXM parts, dense figures."""

_PRODUCTS: dict[DType, dict[DType, int]] = {
    "bfloat16": {"bfloat16": 1, "float16": 1, "float32": 1, "float64": 1},
    "float16": {"float16": 1, "float32": 1, "float64": 1, "bfloat16": 3},
    "float32": {"float32": 1, "float64": 1, "bfloat16": 3, "float16": 3},
    "float64": {"float64": 1, "bfloat16": 14, "float16": 14},
}
"""By dtype of the data: how many matrix products of another dtype can stand for one, at the precision that `numerics`
demands. A wider one always can. Operands split into a high and a low half make one of three narrow ones; float64 takes
seven 7-bit slices, 28 int8 products at twice the 16-bit rate. A floor that ignored this would be beaten honestly."""


def datasheet(device: str) -> Peaks | None:
    """Published peaks of the device of that name, or None if they are not known."""
    return next((peaks for name, peaks in _DATASHEET.items() if name in device), None)


def floor(work: Work, device: str, dtype: DType) -> tuple[float, str] | None:
    """(us, what binds it) at datasheet peaks, or None if they are not known."""
    peaks = datasheet(device)
    return None if peaks is None or work == Work() else time_at(work, peaks, dtype)


def floors(work: Work, device: str, dtype: DType, world_size: int, measured: Peaks | None) -> Floors:
    """What no measured time may beat, and the time that the rates measured on this machine would take."""
    if work == Work():  # a user's problem that says nothing
        return Floors()
    published = floor(work, device, dtype)
    if measured is None:
        return Floors(published[0], published[1]) if published else Floors()
    achievable_us, achievable_bound_by = time_at(work, measured, dtype)
    if published is not None:
        return Floors(published[0], published[1], "datasheet", achievable_us, achievable_bound_by)
    # Another kernel than ours may be faster than what was measured, so half of that time at most. And ranks on shared
    # cores run one after the other: what is counted on the busiest may be done in another's call, before its own.
    no_wait = Peaks(measured.hbm_gbps, measured.link_gbps, measured.tflops)
    sol_us, bound_by = time_at(work, no_wait, dtype)
    return Floors(sol_us / max(2, world_size), bound_by, "calibration", achievable_us, achievable_bound_by)


def terms(work: Work, peaks: Peaks, dtype: DType) -> dict[str, float]:
    """By what binds: the microseconds that the work needs of it, if nothing else counts."""
    rates = [peaks.tflops[other] / count for other, count in _PRODUCTS[dtype].items() if other in peaks.tflops]
    linked = work.link_in_bytes or work.link_out_bytes
    return {
        "link in": work.link_in_bytes / peaks.link_gbps / 1e3,
        "link out": work.link_out_bytes / peaks.link_gbps / 1e3,
        "HBM": work.hbm_bytes / peaks.hbm_gbps / 1e3,
        "FLOPs": work.flops / max(rates) / 1e6,
        "latency": max(peaks.kernel_us, peaks.signal_us) if linked else peaks.kernel_us,
    }


def time_at(work: Work, peaks: Peaks, dtype: DType) -> tuple[float, str]:
    """(us, what binds it) if everything overlaps at those peaks."""
    needed = terms(work, peaks, dtype)
    bound = max(needed, key=lambda name: needed[name])
    return needed[bound], bound
