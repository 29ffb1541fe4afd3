"""Everything that differs between kinds of device: one file each, behind the `Platform` protocol.

Modules here import torch only inside functions that run in ranks: the supervisor uses the other half without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from harness.errors import UsageError
from harness.types import PlatformName, Topology

if TYPE_CHECKING:
    import torch


GRAPH_CALLS = 10
"""Calls captured in one graph: enough to make the replay's own launch negligible."""


class NotCapturableError(Exception):
    """This candidate has no launch-free timing; the message says why."""


@dataclass(frozen=True)
class SymmetricMemory:
    """One buffer per rank, mapped by all."""

    local: torch.Tensor
    """uint8, this rank's own."""
    peers: list[torch.Tensor]
    """uint8 views of every rank's buffer, own included."""
    addresses: list[int]
    """Device address of each rank's buffer as seen from this rank."""
    barrier: Callable[[], None]
    """All ranks; device-side on the current stream where the device has streams."""
    keep: Any
    """Whatever must stay alive with the buffer."""


class Platform(Protocol):
    name: PlatformName

    # In the supervisor: no torch.

    def device_names(self) -> tuple[str, ...]:
        """Devices of this machine, one name each (`cpu`: one per core set usable by a rank)."""

    def check(self, world_size: int) -> None:
        """Raises UsageError if the machine cannot hold that many ranks."""

    def topology(self, measured: dict[str, float], world_size: int) -> Topology:
        """Text and figures for prompts from what `measure` returned."""

    # Toolchain: no device.

    def compile_command(self, source: Path, output: Path, flags: Sequence[str]) -> list[str]:
        """Compiler command for a shared library with `extern "C"` functions. Raises HarnessError if there is none."""

    def target(self) -> str:
        """What compiled code depends on besides the command: part of the cache's key."""

    suffix: str
    """Of kit sources: `.cu` or `.cpp`."""

    # In a rank.

    def start(self, rank: int, world_size: int, store: Any) -> torch.device:
        """Select the device and initialise the default process group."""

    def synchronize(self) -> None: ...

    def stream(self) -> int:
        """Handle of the current stream; 0 where there are none."""

    def symmetric(self, size_bytes: int, sequence: int) -> SymmetricMemory:
        """Collective: zero-filled buffers of equal size on every rank. `sequence` is the same number on all ranks."""

    def time_eager(
        self, call: Callable[[int], Any], iterations: int, align: Callable[[], None], tick: Callable[[], None]
    ) -> list[float]:
        """Microseconds of each of `iterations` calls as Python makes them; ranks aligned before each."""

    def time_device(
        self, call: Callable[[int], Any], iterations: int, align: Callable[[], None], tick: Callable[[], None]
    ) -> list[float]:
        """Microseconds per call without launch overhead. Raises NotCapturableError."""

    def time_steady(self, call: Callable[[int], Any], iterations: int, tick: Callable[[], None]) -> list[float]:
        """Microseconds of each of `iterations` back-to-back calls, ranks aligned only by the calls themselves."""

    def measure(self, rank: int, world_size: int) -> dict[str, float]:
        """Bandwidths between ranks, collective: what the machine was seen to do."""


def get(name: PlatformName) -> Platform:
    """The platform of that name. Raises UsageError."""
    if name == "cpu":
        from harness.platforms.cpu import Cpu

        return Cpu()
    if name == "cuda":
        from harness.platforms.cuda import Cuda

        return Cuda()
    raise UsageError(f"unknown platform {name!r}; there are cpu and cuda")
