"""The floor under any candidate's time: what the busiest rank cannot avoid, at the device's datasheet peaks."""

from __future__ import annotations

from dataclasses import dataclass

from harness.types import DType
from problems.spec import Work


@dataclass(frozen=True)
class Peaks:
    """Dense rates of one device; links per direction."""

    hbm_gbps: float
    link_gbps: float
    tflops: dict[str, float]


def _nvidia(hbm_gbps: float, link_gbps: float, half: float, single: float, double: float) -> Peaks:
    return Peaks(hbm_gbps, link_gbps, {"bfloat16": half, "float16": half, "float32": single, "float64": double})


_DATASHEET = {
    "A100": _nvidia(2039, 300, 312, 19.5, 19.5),
    "H100": _nvidia(3350, 450, 989, 67, 67),
    "H200": _nvidia(4800, 450, 989, 67, 67),
    "B200": _nvidia(8000, 900, 2250, 75, 40),
}
"""Vendor datasheets, SXM parts, dense figures (shared with the roofline table in docs/architecture.md)."""


def floor(work: Work, device: str, dtype: DType) -> tuple[float, str] | None:
    """(sol_us, what binds it) on one device of that name, or None if its peaks are not known."""
    peaks = next((p for name, p in _DATASHEET.items() if name in device), None)
    if peaks is None:
        return None
    terms = {
        "link in": work.link_in_bytes / peaks.link_gbps / 1e3,
        "link out": work.link_out_bytes / peaks.link_gbps / 1e3,
        "HBM": work.hbm_bytes / peaks.hbm_gbps / 1e3,
        "FLOPs": work.flops / peaks.tflops[dtype] / 1e6,
    }
    bound = max(terms, key=lambda name: terms[name])
    return terms[bound], bound
