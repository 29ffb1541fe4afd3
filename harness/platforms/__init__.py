"""Everything that differs between kinds of device: one file each, behind the `Platform` protocol.

Modules here import torch only inside functions that run in ranks: the supervisor uses the other half without it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from harness.errors import UsageError
from harness.types import PlatformName, Topology

if TYPE_CHECKING:
    import torch


_random_bytes = os.urandom  # bound before any candidate can replace it
MAX_PRIME_US = 5000.0
LEAST_KEPT = 4
"""Audited outputs for which a rank has room, however large they are."""


@dataclass(frozen=True)
class Plan:
    """One block of timed calls: `samples` times `calls` calls back to back, ranks aligned before each sample."""

    samples: int
    calls: int = 1
    """Short calls are timed several at once: an event resolves half a microsecond and costs two or three."""
    prime_us: float = 0.0
    """How long the device is kept busy before each turn, so that the host is ahead when its calls begin."""
    prime_limit_us: float = MAX_PRIME_US
    """To how much that grows where a host needs longer to issue a turn."""
    expected_us: float = 0.0
    """What one call is expected to take; for deadlines only."""
    communicator: int = 0
    """Which of `Platform.communicators` the reference uses."""
    turns: int = 1
    """How often the inputs of a sample change; the changes are on nobody's clock."""
    repeats: int = 1
    """After how many of these changes, the last ones, a sample makes its calls: to be seen by a clock outside, they
    must fill more time."""
    seed: int = 0
    """What the inputs of each sample are made of (`Ring.draw`)."""
    audit_chance: float = 0.0
    """The chance of each call that its output is kept, copied on the caller's stream: of an eager call as soon as it
    returns, of a graph's as soon as its replay has been issued; the last one's is, if no other has been. The sample's
    time does not count."""
    first_chance: float = 0.0
    """The chance of each sample that its first output is kept, where a call that has not waited for its inputs goes
    wrong; its time does not count."""

    def __post_init__(self) -> None:
        if not 1 <= self.repeats <= self.turns:
            raise ValueError(f"{self.repeats} repeats of {self.turns} turns")


class Lottery:
    """Which outputs of one rank's block are kept. Drawn by each rank for itself when a call has been made: what is not
    yet decided cannot be found out. That runs inside the timed interval: about half a microsecond, for the random
    bytes. Calls are numbered as if all turns made them."""

    def __init__(self, plan: Plan) -> None:
        self.audited: set[int] = set()
        """Samples of which an output has been kept."""
        self._each, self._last, self._first = plan.calls * plan.turns, plan.samples * plan.calls * plan.turns - 1, -1
        self._begin = plan.calls * (plan.turns - plan.repeats)
        """The first of a sample's calls."""
        self._below, self._begins, self._draw = _below(plan.audit_chance), _below(plan.first_chance), _random_bytes
        self._none = plan.audit_chance == 0 and plan.first_chance == 0

    def begins(self, sample: int) -> None:
        """A sample: whether its first output is kept."""
        self._first = sample * self._each + self._begin if not self._none and self._draw(4) < self._begins else -1

    def keeps(self, call: int) -> bool:
        """Whether the output of the call that has just been made is kept: by chance, or as the first one of a
        sample, or as the last one of a block of which no other has been."""
        if self._none:
            return False
        kept = self._draw(4) < self._below or call == self._first or (call == self._last and not self.audited)
        if kept:
            self.audited.add(call // self._each)
            self._first = -1
        return kept


def _below(chance: float) -> bytes:
    """Four random bytes are less than these with that chance."""
    return min(int(chance * 2**32), 2**32 - 1).to_bytes(4, "big")


@dataclass(frozen=True)
class Times:
    """What one rank measured in a block."""

    times_us: list[float]
    """Per sample: the time of one call, averaged over the sample's calls."""
    host_us: list[float]
    """Per sample: how long the host needed to issue one call; empty where issuing and running are the same."""
    audited: list[int] = field(default_factory=list)
    """Samples with an output that was drawn to be kept."""
    lead_us: list[float] = field(default_factory=list)
    """Per sample: what passed from the change of its inputs to the clock's start."""
    turning_us: list[float] = field(default_factory=list)
    """Per sample: what the host needed for a turn besides its calls; empty where issuing and running are the same."""
    taking_us: list[float] = field(default_factory=list)
    """Per copy of an output: what the host needed for it."""


@dataclass(frozen=True)
class Noise:
    """How far apart two sets of processes that run the same code were measured to be, 95 times in 100 (the A/A test in
    docs/results.md): where buffers happen to lie. No block shows it, so every interval is widened by it."""

    relative: float
    absolute_us: float
    of_host: float = 0.0
    """Share of what a side's host needs to issue a call: what the device needs between one launch and the next."""
    only_longer: bool = False
    """Whether other work on the machine may make one side's calls many times longer in all its blocks. It leaves the
    least times alone, so the interval holds their ratio as well."""


@dataclass(frozen=True)
class Outside:
    """What calls may take by the supervisor's clock. The parts are added."""

    factor: float
    """Times what is claimed for them."""
    block_us: float
    """Of a block: waking up processes, and what else the machine does."""
    turn_us: float
    """Of each turn with calls: what lies between these and the events around them."""
    consistent: float
    """How many times what was claimed in the blocks that count may be claimed in those that are looked at."""
    copied: float
    """The same where every output is copied, besides what the copies take."""


@dataclass(frozen=True)
class Unclocked:
    """What a candidate may take where no clock counts it, on top of what the reference takes there. Three places: the
    copy of an output, what lies between two timed samples, and the lead, from the change of a sample's inputs to the
    start of its clock. The parts of each are added."""

    copying_share: float
    """Of a sample of which no output is copied."""
    copying_us: float
    copying_us_per_mib: float
    """Of output."""
    each_copy_us: float
    each_copy_us_per_mib: float
    """Of each copy, where every call's output is copied."""
    before_factor: float
    """How many times the reference's own time may pass between samples, and in the lead."""
    between_share: float
    """Of one of the reference's samples."""
    between_us: float
    most_blocks_factor: float
    """How many times what may pass between samples in the quietest block may do so in half of them: on a busy machine
    each begins with waking up ranks that have waited."""
    lead_us: float


@dataclass(frozen=True)
class Hooks:
    """What a rank does around timed calls."""

    align: Callable[[], None]
    """All ranks meet; device-side on cuda."""
    before: Callable[[int], None] = lambda turn: None
    """Before each turn of each sample, outside the measured interval; all are numbered through."""
    prepare: Callable[[int], None] = lambda turn: None
    """What `before` of a turn can do sooner: asked for while the device is at the calls of the turn before."""
    take: Callable[[int, Any], None] = lambda call, output: None
    """Copies the output of an audited call, on the caller's stream."""


class NotCapturableError(Exception):
    """There is no launch-free timing; the message says why."""


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


DIRTY = (0xFF, 0xFE)
"""What the harness fills free memory with: NaN, or (cpu) a number near the end of each format's range."""


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

    def start(self, rank: int, world_size: int, store: Any, part: Callable[[str], None]) -> torch.device:
        """Select the device and initialise the default process group. `part` is told the name of each part that is
        done."""

    def communicators(self) -> int:
        """Collective: make what `use_communicator` chooses from; returns how many there are. The same collective on the
        same GPUs is 1% faster or slower from one NCCL communicator to the next, as its buffers happen to lie, so that
        the reference's time is taken over several."""

    def use_communicator(self, number: int) -> None:
        """Make it the default process group's."""

    def synchronize(self) -> None: ...

    def stream(self) -> int:
        """Handle of the current stream; 0 where there are none."""

    def dirty_memory(self, size_bytes: int) -> AbstractContextManager[None]:
        """What is allocated inside, up to about `size_bytes` at once, is full of bytes from `DIRTY`: nothing left over
        there looks right, and what was never written is known by it."""

    own_collectives: int
    """Collectives that `symmetric` has called so far."""

    def symmetric(self, size_bytes: int, sequence: int) -> SymmetricMemory:
        """Collective: zero-filled buffers of equal size on every rank. `sequence` is the same number on all ranks."""

    noise: Noise

    def outside(self, mode: str) -> Outside:
        """Of `eager` or `device` calls."""

    unclocked: Unclocked

    quiet: tuple[float, float]
    """How much slower the reference may be beside a candidate than without: up to the first factor that is noise, from
    there on its time without counts, and beyond the second the candidate has slowed it."""

    def core(self, rank: int, world_size: int) -> int | None:
        """The processor that a rank's main thread is kept on while it is timed, the same for the reference's and the
        candidate's; None to let it move."""

    def time_eager(self, call: Callable[[int], Any], plan: Plan, hooks: Hooks) -> Times:
        """Calls as Python makes them; the host ahead of the device where there is one."""

    def time_device(self, call: Callable[[int], Any], plan: Plan, hooks: Hooks) -> Times:
        """The same without launches by the host. What was captured is used again until `forget`; `call` must do the
        same each time. Raises NotCapturableError."""

    def delay(self, ms: float) -> None:
        """Keep the current stream busy for that long; the host itself where there are no streams."""

    def disturb(self, ms: float) -> None:
        """Begin to load the device beside the current stream for about that long, and return; nothing where there are
        no streams."""

    def forget(self) -> None:
        """Drop what `time_device` has captured: the tensors that calls use will be others."""

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
