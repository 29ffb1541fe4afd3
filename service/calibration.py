"""A machine's measured peaks as a person reads them: next to the datasheet, and whether they still hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from harness import roofline
from harness.calibration import Calibration
from harness.machine import Machine
from runs.wording import when
from service.text import columns


def report(calibration: Calibration, path: Path) -> str:
    """What was measured, what the datasheet says, and where it is kept."""
    published = roofline.datasheet(calibration.devices[0])
    rows = [("", "MEASURED", "DATASHEET", "REACHED")]
    for way, gbps in calibration.link_gbps.items():
        rows.append(_row(f"link, one direction: {way}", gbps, published.link_gbps if published else None, "GB/s"))
    for way, gbps in calibration.hbm_gbps.items():
        rows.append(_row(f"memory, read + write: {way}", gbps, published.hbm_gbps if published else None, "GB/s"))
    for dtype, tflops in calibration.tflops.items():
        rows.append(_row(f"matrix product, {dtype}", tflops, published.tflops[dtype] if published else None, "TFLOP/s"))
    rows.append((f"barrier of {calibration.world_size} ranks", f"{calibration.barrier_us:.2f} us", "", ""))
    if calibration.kernel_us is not None:
        rows.append(("smallest kernel", f"{calibration.kernel_us:.2f} us", "", ""))
    machine = f"{len(calibration.devices)}x {calibration.devices[0]}, {calibration.world_size} ranks"
    return f"{machine}, the best of each:\n{columns(rows)}\nstored in {path}"


def _row(what: str, measured: float, published: float | None, unit: str) -> tuple[str, str, str, str]:
    shown = f"{measured:.3g}" if measured < 100 else f"{measured:.0f}"
    if published is None:
        return what, f"{shown} {unit}", "-", ""
    return what, f"{shown} {unit}", f"{published:g} {unit}", f"{measured / published:.0%}"


def age(calibration: Calibration) -> str:
    """When and with how many ranks it was measured."""
    return f"measured {when(calibration.at)} with {calibration.world_size} ranks"


def differences(calibration: Calibration, machine: Machine) -> Iterator[str]:
    """What has changed on the machine since."""
    driver = machine.gpus.gpus[0].driver if calibration.platform == "cuda" and machine.gpus.gpus else ""
    for what, then, now in (
        ("driver", calibration.driver, driver),
        ("torch", calibration.torch, machine.toolchain.torch or ""),
    ):
        if then != now:
            yield f"{what} was {then or 'none'}, is {now or 'none'}"
