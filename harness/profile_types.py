"""What a profile says: types that cross processes and disks, as in `types.py`. Imports no torch."""

from __future__ import annotations

from pydantic import Field

from harness.types import DType, Frozen, Mechanism


class CallProfile(Frozen):
    """One kernel or call in a rank's profile, summed by name."""

    name: str
    device_us: float
    """Time on the device per iteration; 0 for host-only work."""
    host_us: float
    """Time on the host per iteration, callees excluded."""
    calls: float
    """Per iteration."""


class LinkTraffic(Frozen):
    """One rank's bytes per call over NVLink, by counters of the hardware."""

    sent_bytes: float
    """Data, without headers."""
    received_bytes: float
    wire_bytes: float
    """Everything that was sent, headers and requests included."""
    pushed: float | None = None
    """Share of what it sent that it wrote to peers; the rest is what peers have read. None if only NVML counted."""


class RankProfile(Frozen):
    """One rank's part of a profile; times are medians over the calls, in microseconds."""

    rank: int
    iteration_us: float
    """Wall time of one call of twenty back to back, not traced."""
    top: tuple[CallProfile, ...]
    span_us: float = 0.0
    """From the first kernel's start to the last one's end, of a call alone that all ranks begin together and whose
    launches were issued before; 0 where nothing ran on a device."""
    idle_us: float = 0.0
    """Within `span_us`, nothing ran."""
    communication_us: float = 0.0
    """Within it, something ran that moves data between ranks or waits: NCCL, peer copies, kernels that signal."""
    computation_us: float = 0.0
    """Likewise, anything else, local copies included, and kernels that communicate and use the tensor cores as well."""
    both_us: float = 0.0
    """Likewise, both at once."""
    waiting_us: float = 0.0
    """What its communicating kernels took longer than the same ones on the fastest rank: mostly waiting for others.
    Inferred."""
    link: LinkTraffic | None = None
    hbm_read_bytes: float | None = None
    hbm_written_bytes: float | None = None
    tensor_active: float | None = None
    """Share of the cycles of busy SMs in which their tensor cores worked."""
    warps_active: float | None = None
    """Share of the warp slots of busy SMs that were in use."""
    cpu_share: float | None = None
    """Processor time over wall time; above 1 with several threads."""
    shared_bytes: tuple[float, ...] = ()
    """On cpu: bytes of each rank's symmetric buffers that one call uses, in whole pages."""


class KernelCode(Frozen):
    """What a kernel's machine code shows."""

    name: str
    loads: dict[int, int] = Field(default_factory=dict)
    """Instructions that load from global memory, by bytes for each thread."""
    stores: dict[int, int] = Field(default_factory=dict)
    spills: int = 0
    """Instructions on local memory: registers that did not fit, or arrays with computed indices."""
    system_fences: int = 0
    """Fences that wait for all ranks' memory."""
    system_fences_in_loops: int = 0
    """In loops that move data."""
    signals: int = 0
    """Loads, stores and atomics that other ranks' kernels can be waiting for or raise."""
    bulk_copies: int = 0
    """TMA."""
    tensor: int = 0
    """Matrix instructions."""
    multicast: int = 0


class KernelProfile(Frozen):
    """One kernel or copy, on all ranks."""

    name: str
    calls: float
    """Per call of `solution`."""
    device_us: float
    """Of all of them in one call, mean over ranks."""
    fastest_us: float
    """Likewise, on the rank where it took least."""
    communicates: bool
    """NCCL, a copy between ranks, or machine code that signals to other ranks."""
    computes: bool = True
    """What does not communicate, and what uses the tensor cores while it does."""
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    registers: int = 0
    shared_memory_bytes: int = 0
    streams: tuple[int, ...] = ()
    occupancy: float | None = None
    """Share of the warp slots that its blocks can take: an estimate from its resources and grid."""
    copied_bytes: int = 0
    """Of a copy."""
    code: KernelCode | None = None
    counters: dict[str, float] = Field(default_factory=dict)
    """Only if asked for: hardware counters of one launch, mean over ranks; `harness.counters` has the names."""


class Hint(Frozen):
    """What the next edit should consider."""

    text: str
    evidence: str
    gain_us: float
    """At most what it may save, as far as can be told; what hints are ranked by."""


class Profile(Frozen):
    """Where a candidate's time goes. `trace` is a Chrome trace file (opens in Perfetto), all ranks merged."""

    candidate: str
    dtype: DType
    iterations: int
    ranks: tuple[RankProfile, ...]
    trace: str
    kernels: tuple[KernelProfile, ...] = ()
    """Longest first."""
    mechanisms: tuple[Mechanism, ...] = ()
    """Seen at work; empty if no data moves between ranks."""
    limits_us: dict[str, float] = Field(default_factory=dict)
    """What the problem's work needs at least by itself of `FLOPs`, `HBM`, `link in`, `link out`: at the rates measured
    on this machine, else the datasheet's. Empty if neither is known."""
    ideal_link_bytes: tuple[float, float] = (0.0, 0.0)
    """What the busiest rank must send and receive at least."""
    ideal_hbm_bytes: float = 0.0
    hints: tuple[Hint, ...] = ()
    """Best first."""
    notes: tuple[str, ...] = ()
    """What could not be had, and why."""
    seconds: dict[str, float] = Field(default_factory=dict)
    """What each part of making it took."""
