"""What one rank can do at most, measured in the reference ranks: the best of many calls, sizes and ways, never a
median, because a rate that floors are made of must be the most that the machine can do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, get_args

import torch
import torch.distributed as dist

from harness.platforms import Hooks, NotCapturableError, Plan
from harness.rank import Rank
from harness.types import DType, PlatformName

_COPY_BYTES: dict[PlatformName, tuple[int, ...]] = {
    # Small cases live in a processor's caches, so their rates count; a GPU's L2 must not pass for its memory.
    "cpu": (256 << 10, 1 << 20, 4 << 20, 16 << 20),
    "cuda": (512 << 20, 1 << 30),
}
_MATRIX_ROWS: dict[PlatformName, tuple[int, ...]] = {"cpu": (256, 512), "cuda": (4096, 8192)}
_SAMPLES = 12
_SLOW_US = 5e3
"""A product that takes longer is not tried at larger sizes: float16 has no fast path on most processors."""
_PRIME_US = 200.0
"""Head start of the host: no launch falls into what is timed."""
_IN_A_ROW = Plan(_SAMPLES, calls=20, prime_us=_PRIME_US)
"""For short calls. A barrier alone would be too short: the last rank to arrive finds that all the others have."""

Call = Callable[[], Any]


def measure(state: Rank) -> dict[str, Any]:
    """Collective. `link_gbps` and `hbm_gbps` by way, `tflops` by dtype, `barrier_us`, `kernel_us` (None without
    launches): the fields of `harness.calibration.Calibration`."""
    with torch.no_grad():
        return _Measure(state).run()


class _Measure:
    def __init__(self, state: Rank) -> None:
        assert state.device is not None
        self._state, self._device = state, state.device
        self._platform = state.platform
        self._tick: Callable[[int], None] = lambda sample: state.progress.touch()
        largest = max(_COPY_BYTES[self._platform.name])
        self._memory = self._platform.symmetric(largest, sequence=-2)  # -1 is `Platform.measure`'s
        self._private = torch.empty(largest, dtype=torch.uint8, device=self._device)
        # Zeros take less power, and a GPU then runs at clocks that no real data sees.
        for buffer in (self._memory.local, self._private):
            buffer.random_()
        self._link: dict[str, float] = {}
        self._hbm: dict[str, float] = {}
        self._tflops: dict[str, float] = {}

    def run(self) -> dict[str, Any]:
        self._platform.forget()  # what it has captured for a problem
        # A ring of pulls or pushes loads both directions of every link at once; one pair alone loads one.
        for who in self._all_then_one(aligned=True):
            for size in _COPY_BYTES[self._platform.name]:
                self._copies(who, size)
        for _ in self._all_then_one(aligned=False):
            for dtype in get_args(DType):
                self._products(dtype)
        return {
            "link_gbps": self._link,
            "hbm_gbps": self._hbm,
            "tflops": self._tflops,
            "barrier_us": self._barrier_us(),
            "kernel_us": self._kernel_us(),
        }

    def _all_then_one(self, aligned: bool) -> Iterator[str]:
        """Yields on all ranks, then on rank 0 alone with every core of the machine while the others sleep."""
        self._align: Callable[[], None] = self._state.align if aligned else _nothing
        dist.barrier()
        yield "all ranks at once"
        self._platform.synchronize()
        dist.barrier()
        if self._state.rank == 0:
            self._align = _nothing
            threads = torch.get_num_threads()
            torch.set_num_threads(len(os.sched_getaffinity(0)))
            yield "one rank alone"
            torch.set_num_threads(threads)
        self._platform.synchronize()
        dist.barrier()

    def _copies(self, who: str, size: int) -> None:
        peer = self._memory.peers[(self._state.rank + 1) % self._state.world_size][:size]
        own, private = self._memory.local[:size], self._private[:size]
        for copy in (_copy_engine, _kernel):
            self._note(self._link, f"pull, {who}", size, partial(copy, private, peer))
            self._note(self._link, f"push, {who}", size, partial(copy, peer, private))
            self._note(self._hbm, f"copy, {who}", 2 * size, partial(copy, own, private))

    def _note(self, rates: dict[str, float], way: str, moved_bytes: int, call: Call) -> None:
        rates[way] = max(rates.get(way, 0.0), moved_bytes / self._best_us(call) / 1e3)

    def _products(self, dtype: DType) -> None:
        for rows in _MATRIX_ROWS[self._platform.name]:
            left, right = (torch.randn(rows, rows, device=self._device).to(getattr(torch, dtype)) for _ in range(2))
            out = torch.empty_like(left)
            us = self._best_us(partial(torch.matmul, left, right, out=out))
            self._tflops[dtype] = max(self._tflops.get(dtype, 0.0), 2 * rows**3 / us / 1e6)
            if us > _SLOW_US:
                break

    def _best_us(self, call: Call) -> float:
        plan = Plan(_SAMPLES, prime_us=_PRIME_US)
        return min(self._platform.time_eager(lambda i: call(), plan, Hooks(self._align, self._tick)).times_us)

    def _launched_us(self, call: Call) -> float | None:
        """Best time of a short call on all ranks, without launches by the host; None where there are none."""

        def no_output(i: int) -> None:
            call()

        try:
            times = self._platform.time_device(no_output, _IN_A_ROW, Hooks(self._state.align, self._tick))
        except NotCapturableError:
            return None
        finally:
            self._platform.forget()
        return min(times.times_us)

    def _barrier_us(self) -> float:
        barrier = self._state.align
        launched_us = self._launched_us(barrier)
        if launched_us is not None:
            return launched_us
        return min(self._platform.time_eager(lambda i: barrier(), _IN_A_ROW, Hooks(barrier, self._tick)).times_us)

    def _kernel_us(self) -> float | None:
        one = torch.zeros(1, device=self._device)
        return self._launched_us(one.neg_)


def _nothing() -> None:
    pass


def _copy_engine(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source)


def _kernel(target: torch.Tensor, source: torch.Tensor) -> None:
    # An elementwise kernel that moves the same bytes: the cores' own loads and stores in place of a copy engine's.
    torch.neg(source.view(torch.float32), out=target.view(torch.float32))
