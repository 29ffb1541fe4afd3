"""The peaks of this machine as measured once by `ringsmith doctor --calibrate`, and where they are kept. No torch."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from harness import cache, machine
from harness.errors import HarnessError, UsageError
from harness.processes import Processes
from harness.roofline import Peaks
from harness.types import DType, Frozen, PlatformName

_DEADLINE_S = 120.0

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Rates = Annotated[dict[str, Positive], Field(min_length=1)]
"""By the way it was measured, each the best of several sizes."""


class Calibration(Frozen):
    """What one machine was seen to do at most."""

    platform: PlatformName
    devices: tuple[str, ...]
    """All of the machine's, whether they took part or not: what it is known by."""
    world_size: int
    """Ranks that took part."""
    driver: str
    torch: str
    at: float
    """Unix time."""
    link_gbps: Rates
    """One rank's rate from or to a peer, per direction."""
    hbm_gbps: Rates
    """Local copies, bytes read + bytes written."""
    tflops: Annotated[dict[DType, Positive], Field(min_length=1)]
    """Square matrix products by dtype, as PyTorch makes them by default."""
    barrier_us: Positive
    """Of all ranks, device-side, one after the other."""
    kernel_us: Positive | None
    """Smallest kernel in a CUDA graph; None where nothing is launched."""

    def peaks(self, world_size: int) -> Peaks:
        """For that many ranks."""
        return Peaks(
            hbm_gbps=max(self.hbm_gbps.values()),
            link_gbps=max(self.link_gbps.values()),
            tflops=self.tflops,
            kernel_us=self.kernel_us or 0.0,
            # A barrier is a signal each way at most, and data from another rank needs one. Fewer ranks meet sooner.
            signal_us=self.barrier_us / 2 if world_size >= self.world_size else 0.0,
        )


def path(platform: PlatformName, devices: Sequence[str]) -> Path:
    """File of the machine with these devices. The driver is not part of the name: a calibration that an update has made
    old is still found, and `doctor` says so."""
    return cache.root() / "calibration" / f"{cache.key(platform, tuple(devices))}.json"


def load(platform: PlatformName, devices: Sequence[str]) -> Calibration | None:
    """What was stored for the machine with these devices; None if nothing usable was."""
    try:
        stored = Calibration.model_validate_json(path(platform, devices).read_bytes())
    except (OSError, ValidationError):
        return None
    return stored if (stored.platform, stored.devices) == (platform, tuple(devices)) else None


def save(calibration: Calibration) -> Path:
    """Store it in place of the machine's last one. Raises HarnessError if the folder cannot be written."""
    target = path(calibration.platform, calibration.devices)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        fd, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(calibration.model_dump_json(indent=1))
            Path(name).rename(target)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
    except OSError as error:
        raise HarnessError(f"cannot write {target}: {error.strerror}") from None
    return target


def measure(processes: Processes) -> Calibration:
    """Have the reference ranks measure, under the lease."""
    platform = processes.platform
    if processes.world_size < 2:
        raise UsageError("a calibration needs at least two ranks: one alone has no links to measure")
    platform.check(processes.world_size)
    with processes.lease().hold():
        outcome = processes.reference().ask("calibrate", {}, deadline_s=_DEADLINE_S)
        replies = processes.expect(outcome, "measuring this machine's peaks").replies
    gpus = machine.gpus() if platform.name == "cuda" else ()
    kernels = [reply["kernel_us"] for reply in replies if reply["kernel_us"] is not None]
    try:
        return Calibration(
            platform=platform.name,
            devices=platform.device_names(),
            world_size=processes.world_size,
            driver=gpus[0].driver if gpus else "",
            torch=machine.torch_version() or "",
            at=time.time(),
            link_gbps=_best([reply["link_gbps"] for reply in replies]),
            hbm_gbps=_best([reply["hbm_gbps"] for reply in replies]),
            tflops=_best([reply["tflops"] for reply in replies]),
            barrier_us=min(reply["barrier_us"] for reply in replies),
            kernel_us=min(kernels, default=None),
        )
    except ValidationError as error:
        raise HarnessError(f"the ranks measured rates that are none: {error.errors()[0]['msg']}") from None


def _best(rates: Sequence[Mapping[str, float]]) -> dict:
    """The fastest rank's figure of each; some ways are one rank's alone."""
    best: dict[str, float] = {}
    for rate in rates:
        for name, value in rate.items():
            best[name] = max(best.get(name, 0.0), value)
    return best
