"""Ranks as processes on one host: gloo, POSIX shared memory as symmetric memory, C++ candidates."""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import machine
from harness.errors import HarnessError, UsageError
from harness.platforms import (
    DIRTY,
    Hooks,
    Lottery,
    Noise,
    NotCapturableError,
    Outside,
    Plan,
    SymmetricMemory,
    Times,
    Unclocked,
)
from harness.types import PlatformName, Topology

if TYPE_CHECKING:
    import torch

_MAX_RANKS = 16


_M_PERTURB = -6
_libc = ctypes.CDLL(None)
_now_ns, _sleep = time.perf_counter_ns, time.sleep  # bound before any candidate can replace them


class Cpu:
    name: PlatformName = "cpu"
    suffix = ".cpp"
    own_collectives = 0

    def device_names(self) -> tuple[str, ...]:
        cpu = machine.cpu()
        return (f"{cpu.model} ({cpu.cores} cores)",)

    def check(self, world_size: int) -> None:
        if world_size > _MAX_RANKS:
            raise UsageError(f"the cpu platform runs at most {_MAX_RANKS} ranks, not {world_size}")

    def topology(self, measured: dict[str, float], world_size: int) -> Topology:
        cpu, compiler = machine.cpu(), machine.toolchain().cxx
        lines = [
            f"{world_size} ranks are processes on one host: {cpu.model}, {cpu.cores} cores for all ranks"
            + (f", {', '.join(cpu.features)}" if cpu.features else ""),
            "symmetric memory is POSIX shared memory; a peer's buffer is an ordinary pointer",
        ]
        if measured:
            lines.append(
                f"measured: copy from a peer's buffer {measured['peer_copy_gbps']:.1f} GB/s a rank, all at once, "
                f"barrier of all ranks {measured['barrier_us']:.1f} us, "
                f"gloo all-reduce of 4 MiB {measured['all_reduce_4mib_us']:.0f} us"
            )
        lines.append(f"compiler: {compiler.version if compiler else 'none found'}, flags -O3 -march=native -std=c++17")
        if world_size > cpu.cores:
            lines.append(
                f"{world_size} ranks share {cpu.cores} cores: a spinning rank takes time from the one it waits for"
            )
        return Topology(platform="cpu", devices=self.device_names(), summary="\n".join(lines), figures=measured)

    def compile_command(self, source: Path, output: Path, flags: Sequence[str]) -> list[str]:
        compiler = shutil.which("g++") or shutil.which("c++")
        if compiler is None:
            raise HarnessError("no C++ compiler: install g++ (on Debian: apt-get install g++)")
        return [
            compiler, "-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-pthread", "-fopenmp-simd",
            *flags, str(source), "-o", str(output),
        ]  # fmt: skip

    def target(self) -> str:
        cpu = machine.cpu()  # -march=native: code of one processor may not run on another that shares the cache
        return f"{cpu.model} {cpu.features}"

    def start(self, rank: int, world_size: int, store: Any, part: Callable[[str], None]) -> torch.device:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world_size))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
        part("process group")
        return torch.device("cpu")

    def communicators(self) -> int:
        return 1

    @contextlib.contextmanager
    def dirty_memory(self, size_bytes: int) -> Iterator[None]:
        _libc.mallopt(_M_PERTURB, ~DIRTY[1] & 0xFF)  # glibc fills what it hands out with the complement
        try:
            yield
        finally:
            _libc.mallopt(_M_PERTURB, 0)

    def use_communicator(self, number: int) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def stream(self) -> int:
        return 0

    def symmetric(self, size_bytes: int, sequence: int) -> SymmetricMemory:
        import torch
        import torch.distributed as dist

        rank, world_size = dist.get_rank(), dist.get_world_size()
        folder = Path(os.environ["RINGSMITH_SYMMETRIC"])
        own = folder / f"symmetric.{sequence}.{rank}"
        # The last page holds the barrier's counters, out of the way of the candidate's data.
        page = mmap.PAGESIZE
        total = -(-size_bytes // page) * page + page
        with own.open("wb") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, total)
            except OSError as error:
                raise MemoryError(f"a symmetric buffer of {total} bytes: {error.strerror}") from None
        dist.barrier()
        maps = [
            torch.from_file(str(folder / f"symmetric.{sequence}.{r}"), shared=True, size=total, dtype=torch.uint8)
            for r in range(world_size)
        ]
        counters = [ctypes.c_uint32.from_address(m.data_ptr() + total - page + 64 * rank) for m in maps]
        arrived = [
            ctypes.c_uint32.from_address(maps[rank].data_ptr() + total - page + 64 * r) for r in range(world_size)
        ]
        dist.barrier()
        self.own_collectives += 2
        own.unlink()
        return SymmetricMemory(
            local=maps[rank][:size_bytes],
            peers=[m[:size_bytes] for m in maps],
            addresses=[m.data_ptr() for m in maps],
            barrier=_Barrier(counters, arrived),
            keep=maps,
        )

    # Pages, caches and the scheduler of a shared virtual machine: most A/A ratios are within this.
    noise = Noise(relative=0.1, absolute_us=0.0, only_longer=True)
    # Beside other work at least 6 ms pass between samples where the reference needs as much; a copy of 4 MiB takes
    # 0.8 ms at least, and from the change of inputs to the clock it is 14 us.
    unclocked = Unclocked(
        copying_share=0.3, copying_us=1000.0, copying_us_per_mib=500.0, each_copy_us=200.0, each_copy_us_per_mib=200.0,
        before_factor=2.0, between_share=0.1, between_us=5000.0, most_blocks_factor=4.0,
        lead_us=500.0,
    )  # fmt: skip
    # What else the machine does moves times by any factor: work beside the reference is seen by processor time.
    quiet = (1.3, math.inf)

    def outside(self, mode: str) -> Outside:
        return Outside(factor=1.6, block_us=5000.0, turn_us=0.0, consistent=5.0, copied=5.0)

    def core(self, rank: int, world_size: int) -> int | None:
        # gloo's own threads float; ranks that outnumber the cores had better float too.
        cores = sorted(os.sched_getaffinity(0))
        return cores[rank] if len(cores) >= world_size else None

    def delay(self, ms: float) -> None:
        _sleep(ms / 1e3)

    def disturb(self, ms: float) -> None:
        pass

    def time_eager(self, call: Callable[[int], Any], plan: Plan, hooks: Hooks) -> Times:
        times, lead = list[float](), list[float]()
        lottery = Lottery(plan)
        for sample in range(plan.samples):
            lottery.begins(sample)
            turns, took = range(sample * plan.turns, (sample + 1) * plan.turns), 0
            called = turns[-plan.repeats]
            for turn in turns:
                hooks.before(turn)
                if turn < called:
                    continue
                start = changed = _now_ns()
                if turn == called:
                    hooks.align()
                    start = _now_ns()
                    lead.append((start - changed) / 1e3)
                for i in range(turn * plan.calls, (turn + 1) * plan.calls):
                    output = call(i)
                    if lottery.keeps(i):
                        hooks.take(i, output)
                took += _now_ns() - start
            times.append(took / 1e3 / (plan.calls * plan.repeats))
        return Times(times, [], sorted(lottery.audited), lead)

    def time_device(self, call: Callable[[int], Any], plan: Plan, hooks: Hooks) -> Times:
        raise NotCapturableError("the cpu platform has no launch queue; the eager figure is the only one")

    def forget(self) -> None:
        pass

    def time_steady(self, call: Callable[[int], Any], iterations: int, tick: Callable[[], None]) -> list[float]:
        times = []
        for i in range(iterations):
            start = _now_ns()
            call(i)
            times.append((_now_ns() - start) / 1e3)
            tick()
        return times

    def measure(self, rank: int, world_size: int) -> dict[str, float]:
        import torch
        import torch.distributed as dist

        size = 4 << 20
        memory = self.symmetric(size, sequence=-1)
        target, values = torch.empty(size, dtype=torch.uint8), torch.ones(1 << 20)
        peer = memory.peers[(rank + 1) % world_size]
        copies, barriers, reduces = [], [], []
        for _ in range(12):
            memory.barrier()
            start = time.perf_counter()
            target.copy_(peer)
            copies.append(time.perf_counter() - start)
            memory.barrier()
            start = time.perf_counter()
            memory.barrier()
            barriers.append(time.perf_counter() - start)
            start = time.perf_counter()
            dist.all_reduce(values)
            reduces.append(time.perf_counter() - start)
        median = lambda seconds: sorted(seconds)[len(seconds) // 2]  # noqa: E731
        return {
            "peer_copy_gbps": size / median(copies) / 1e9,
            "barrier_us": median(barriers) * 1e6,
            "all_reduce_4mib_us": median(reduces) * 1e6,
        }


class _Barrier:
    """Each rank writes its round number to all and waits until all have written theirs. Spins, then yields: ranks may
    outnumber cores."""

    def __init__(self, counters: list[ctypes.c_uint32], arrived: list[ctypes.c_uint32]) -> None:
        self._counters, self._arrived, self._round = counters, arrived, 0

    def __call__(self) -> None:
        self._round += 1
        for counter in self._counters:
            counter.value = self._round
        for flag in self._arrived:
            spins = 0
            while flag.value < self._round:
                spins += 1
                if spins > 200:
                    os.sched_yield()
