"""What NVML says of the leased GPUs: clocks and slowdowns while a block runs, bytes over links. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from harness.measure import Reading

_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal (software)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
}
"""NVML's bits for a clock held down; idling and clocks that somebody has set are not named."""
_DISTURBING = 0x8 | 0x20 | 0x40 | 0x80
"""A power cap is normal for matrix products and falls on both sides alike."""


_LINK_FIELDS = (138, 139, 140)
"""NVLink throughput: data sent, data received, everything sent; each of one link, in KiB."""
_MAX_LINKS = 18


class LinkBytes(NamedTuple):
    """Of one GPU, all its links together."""

    sent: int
    received: int
    wire: int
    """Sent, headers and requests included."""


class Clocks:
    """NVML handles of some GPUs, kept open: a reading takes well under a millisecond."""

    def __init__(self, devices: Sequence[int]) -> None:
        import pynvml

        pynvml.nvmlInit()
        self._nvml: Any = pynvml
        self._handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in devices]

    def read(self) -> Reading:
        """Now. Empty if the driver does not tell."""
        nvml = self._nvml
        try:
            mhz = [nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) for handle in self._handles]
            bits = 0
            for handle in self._handles:
                bits |= nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
        except nvml.NVMLError:
            return Reading()
        return Reading(
            sm_mhz=tuple(mhz),
            slowdowns=frozenset(name for bit, name in _REASONS.items() if bits & bit),
            disturbed=bool(bits & _DISTURBING),
        )

    def busy(self) -> list[bool]:
        """Whether a kernel ran on each GPU in NVML's last sampling period (a sixth to one second)."""
        nvml = self._nvml
        try:
            return [nvml.nvmlDeviceGetUtilizationRates(handle).gpu > 0 for handle in self._handles]
        except nvml.NVMLError:
            return []

    def link_bytes(self) -> list[LinkBytes]:
        """What went over each GPU's links since the driver was loaded, in KiB steps; empty if the driver does not tell.
        Seen from outside: a candidate cannot change it."""
        nvml = self._nvml
        try:
            found = []
            for handle in self._handles:
                links = range(_MAX_LINKS)
                read = nvml.nvmlDeviceGetFieldValues(
                    handle, [(field, link) for field in _LINK_FIELDS for link in links]
                )
                values = [v.value.ullVal << 10 if v.nvmlReturn == 0 else None for v in read]
                sums = [
                    sum(v for v in values[i * _MAX_LINKS : (i + 1) * _MAX_LINKS] if v is not None)
                    for i in range(len(_LINK_FIELDS))
                ]
                if all(v is None for v in values):
                    return []
                found.append(LinkBytes(*sums))
        except nvml.NVMLError:
            return []
        return found
