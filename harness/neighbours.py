"""Which GPUs of a machine go together: sets of neighbours, so that two leases do not share what lies between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from harness import lease, machine

Closeness = Callable[[int, int], int]
"""How near two devices are to each other: the larger the nearer."""


def gpu_sets(world_size: int) -> list[tuple[int, ...]]:
    """Disjoint sets of `world_size` GPUs, neighbours together, none in quarantine; empty if there are too few."""
    out = {entry.device for entry in lease.quarantined() if entry.kind == "cuda"}
    return pack([gpu.index for gpu in machine.gpus() if gpu.index not in out], world_size, _closeness())


def pack(devices: Sequence[int], world_size: int, closeness: Closeness) -> list[tuple[int, ...]]:
    """As many sets as there is room for. Each begins with the lowest device that is left and takes what is nearest to
    all that it has."""
    left, sets = sorted(devices), []
    while len(left) >= world_size:
        chosen = [left.pop(0)]
        while len(chosen) < world_size:
            nearest = max(left, key=lambda device: (sum(closeness(device, other) for other in chosen), -device))
            left.remove(nearest)
            chosen.append(nearest)
        sets.append(tuple(sorted(chosen)))
    return sets


def _closeness() -> Closeness:
    """By NVML: NVLink (through a switch too) before PCIe, a common PCIe switch before a common socket. GPUs of which
    NVML says nothing are all alike, so that sets are consecutive."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # as in `machine.scan_gpus`
        return lambda one, other: 0

    def close(one: int, other: int) -> int:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in (one, other)]
        return 1000 * _nvlink(pynvml, *handles) - _distance(pynvml, *handles)

    return close


def _nvlink(nvml: Any, one: Any, other: Any) -> int:
    try:
        status = nvml.nvmlDeviceGetP2PStatus(one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
        return int(status == nvml.NVML_P2P_STATUS_OK)
    except nvml.NVMLError:
        return 0


def _distance(nvml: Any, one: Any, other: Any) -> int:
    """NVML's level of the first thing that both are behind: 10 one PCIe switch, 50 the whole machine."""
    try:
        return int(nvml.nvmlDeviceGetTopologyCommonAncestor(one, other))
    except nvml.NVMLError:
        return int(nvml.NVML_TOPOLOGY_SYSTEM)
