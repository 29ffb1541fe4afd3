"""One process per GPU: NCCL, torch symmetric memory, CUDA candidates."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import machine
from harness.errors import HarnessError, UsageError
from harness.platforms import (
    DIRTY,
    MAX_PRIME_US,
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

_DEFAULT_ARCH = "90"
ARCH_VARIABLE = "RINGSMITH_CUDA_ARCH"
_COMMUNICATORS = 3
_SMALL_BYTES = 256 << 10
_CYCLES_PER_US = 2000  # SM cycles at about the highest clock of these parts
_READ_US = 30.0  # reading twice the L2 cache
_LATE_US = 100.0
"""How much longer than for the host's sake the device is busy before inputs change: for so long those who do not wait
for that find former ones."""
_now_ns = time.perf_counter_ns  # bound before any candidate can replace it


def architecture() -> str:
    """Compute capability of the first GPU without the point, `90` where there is none (a build machine).

    The supervisor decides it once: a build process sees no GPU and must compile for the same target as the ranks."""
    if given := os.environ.get(ARCH_VARIABLE):
        return given
    gpus = machine.gpus()
    return "".join(map(str, gpus[0].compute_capability)) if gpus else _DEFAULT_ARCH


_Captured = tuple[Any, list[Any]]
"""A CUDA graph and the outputs of its calls, which each replay writes."""


class Cuda:
    name: PlatformName = "cuda"
    suffix = ".cu"
    own_collectives = 0

    def __init__(self) -> None:
        self._communicators: list[Any] = []
        self._graphs: dict[tuple[int, int], list[_Captured]] = {}
        self._side: Any = None

    def device_names(self) -> tuple[str, ...]:
        return tuple(gpu.name for gpu in machine.gpus())

    def check(self, world_size: int) -> None:
        there = len(machine.gpus())
        if there < world_size:
            raise UsageError(
                f"world size {world_size} needs {world_size} GPUs; this machine has {there}"
                + ("" if there else " (try --platform cpu)")
            )

    def topology(self, measured: dict[str, float], world_size: int) -> Topology:
        gpus = machine.gpus()[:world_size]
        capability = ".".join(map(str, gpus[0].compute_capability))
        lines = [
            f"{world_size} ranks, one GPU each: {world_size}x {gpus[0].name}, {gpus[0].memory_bytes / 2**30:.0f} GiB, "
            f"compute capability {capability}, driver {gpus[0].driver}",
            f"NVLink: {gpus[0].nvlinks} links a GPU" if gpus[0].nvlinks else "no NVLink",
        ]
        if measured:
            lines += [
                f"measured peer copy {measured['peer_copy_gbps']:.0f} GB/s per direction (copy engine, 256 MiB, all "
                f"ranks at once), local copy {measured['hbm_copy_gbps']:.0f} GB/s read + write, "
                f"device-side barrier of all ranks {measured['barrier_us']:.1f} us",
                f"measured NCCL all-reduce (eager): {measured['all_reduce_2mib_us']:.0f} us for 2 MiB, "
                f"{measured['all_reduce_256mib_us']:.0f} us for 256 MiB",
            ]
        lines.append("NVLink multicast (NVLS, multimem) is switched off on this host and must not be used")
        return Topology(
            platform="cuda", devices=tuple(g.name for g in gpus), summary="\n".join(lines), figures=measured
        )

    def compile_command(self, source: Path, output: Path, flags: Sequence[str]) -> list[str]:
        compiler = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
        if compiler is None:
            raise HarnessError("no CUDA compiler: install the CUDA toolkit or put nvcc on PATH")
        # One -gencode, not -arch=sm_90a: the shorthand makes nvcc run its front end twice.
        arch = architecture() + ("a" if int(architecture()) >= 90 else "")
        return [
            compiler, "-O3", "-std=c++17", "-gencode", f"arch=compute_{arch},code=sm_{arch}", "-lineinfo",
            "-shared", "-Xcompiler", "-fPIC", *flags, str(source), "-o", str(output),
        ]  # fmt: skip

    def target(self) -> str:
        return architecture()

    def start(self, rank: int, world_size: int, store: Any, part: Callable[[str], None]) -> torch.device:
        import torch
        import torch.distributed as dist

        device = torch.device("cuda", rank)
        torch.cuda.init()
        part("driver")
        torch.cuda.set_device(device)
        # Bound before any candidate can replace them.
        self._synchronize, self._busy = torch._C._cuda_synchronize, torch._C._cuda_sleep
        self._event, self._current_stream = torch._C._CudaEventBase, torch.cuda.current_stream
        cache_bytes = torch.cuda.get_device_properties(device).L2_cache_size
        self._filler = torch.zeros(2 * cache_bytes // 8, dtype=torch.int64, device=device)
        self._sink = torch.zeros((), dtype=torch.int64, device=device)
        self._synchronize()
        part("context")
        dist.init_process_group("nccl", store=store, rank=rank, world_size=world_size, device_id=device)
        part("process group")
        return device

    def communicators(self) -> int:
        import torch
        import torch.distributed as dist

        self._communicators = [dist.group.WORLD, *(dist.new_group() for _ in range(_COMMUNICATORS - 1))]
        for group in self._communicators:
            dist.all_reduce(torch.zeros(1, device="cuda"), group=group)  # connects
        torch.cuda.synchronize()
        return len(self._communicators)

    def use_communicator(self, number: int) -> None:
        import torch.distributed as dist

        dist.distributed_c10d.GroupMember.WORLD = self._communicators[number]

    def synchronize(self) -> None:
        self._synchronize()

    def stream(self) -> int:
        import torch

        return torch.cuda.current_stream().cuda_stream

    def symmetric(self, size_bytes: int, sequence: int) -> SymmetricMemory:
        import torch
        import torch.distributed as dist
        import torch.distributed._symmetric_memory as symm_mem

        device = torch.device("cuda", torch.cuda.current_device())
        local = symm_mem.empty(size_bytes, dtype=torch.uint8, device=device)
        local.zero_()
        handle = symm_mem.rendezvous(local, dist.distributed_c10d._get_default_group())
        peers = [
            local if r == handle.rank else handle.get_remote_tensor(r, (size_bytes,), torch.uint8)
            for r in range(handle.world_size)
        ]
        torch.cuda.synchronize()
        handle.barrier(channel=0)  # nobody touches a peer's buffer before it has been zeroed
        return SymmetricMemory(
            local=local,
            peers=peers,
            addresses=[peer.data_ptr() for peer in peers],
            barrier=lambda: handle.barrier(channel=0),
            keep=handle,
        )

    # Two sets of processes place their buffers and NCCL's differently: a third of a microsecond per call as a rule,
    # more where a call is many launches. Of 201 eager and 126 device figures of a reference against itself 96% and 95%
    # have 1 in their intervals so; with 0.2% and 0.5 us alone it was 80% and 91%.
    noise = Noise(relative=0.005, absolute_us=0.5, of_host=0.005)
    # Room for a host that falls behind grows by up to `MAX_PRIME_US` from sample to sample.
    unclocked = Unclocked(
        copying_share=0.3, copying_us=200.0, copying_us_per_mib=10.0, each_copy_us=2.0, each_copy_us_per_mib=0.5,
        before_factor=2.0, between_share=0.25, between_us=1000.0 + MAX_PRIME_US, most_blocks_factor=1.0,
        lead_us=200.0,
    )  # fmt: skip
    quiet = (1.05, 1.5)

    def outside(self, mode: str) -> Outside:
        # Graphs wait for no host: those of 13 honest candidates claimed 3.7 us more, or less, where every output was
        # copied, whether they took 30 or 110. One whose calls do wait, in the driver, claimed 880 instead of 450.
        copied = 1.15 if mode == "device" else 2.5
        return Outside(factor=1.25, block_us=1000.0, turn_us=10.0, consistent=1.5, copied=copied)

    def core(self, rank: int, world_size: int) -> int | None:
        # Unpinned, two sets of processes that run the same code differed by up to 1.9x in launch time.
        cores = sorted(os.sched_getaffinity(0))
        return cores[(2 * rank + 1) * len(cores) // (2 * world_size)] if len(cores) >= 2 * world_size else None

    def _settle(self, prime_us: float, before: Callable[[], None], changed: Any) -> tuple[int, Any]:
        """Nothing in flight, then the device busy for `prime_us`, then `before`, the event `changed`, and L2 filled
        with other data. By reading: dirty lines left by a write would be evicted at the expense of the calls that are
        timed. What `before` changes, it changes when the host is ahead, so that nobody can work on it before the clock
        starts. Returns when the host began to use `prime_us`, and the current stream."""
        import torch

        self._synchronize()
        self._busy(int((_LATE_US + prime_us) * _CYCLES_PER_US))
        began, stream = _now_ns(), self._current_stream()
        before()
        changed.record(stream)
        torch.sum(self._filler, 0, out=self._sink)
        return began, stream

    @contextlib.contextmanager
    def dirty_memory(self, size_bytes: int) -> Iterator[None]:
        import torch

        # Small and large blocks come from different places of torch's allocator.
        for size in {size_bytes, min(size_bytes, _SMALL_BYTES)}:
            torch.empty(size, dtype=torch.uint8, device="cuda").fill_(DIRTY[0])
        yield

    def delay(self, ms: float) -> None:
        self._busy(int(ms * 1e3 * _CYCLES_PER_US))

    def disturb(self, ms: float) -> None:
        """Reading twice the L2 cache over and over on a stream of its own: kernels beside it get fewer SMs, a colder
        cache and less memory bandwidth."""
        import torch

        self._side = self._side or torch.cuda.Stream()
        with torch.cuda.stream(self._side):
            # Made in here: what the current stream's memory is free for may have to wait for work that still reads it.
            sink = torch.zeros_like(self._sink)
            for _ in range(max(1, int(ms * 1e3 / _READ_US))):
                torch.sum(self._filler, 0, out=sink)

    def time_eager(self, call: Callable[[int], Any], plan: Plan, hooks: Hooks) -> Times:
        lottery = Lottery(plan)

        def issue(turn: int) -> None:
            for i in range(turn * plan.calls, (turn + 1) * plan.calls):
                output = call(i)
                if lottery.keeps(i):
                    hooks.take(i, output)

        return self._time(issue, plan, hooks, lottery)

    def time_device(self, call: Callable[[int], Any], plan: Plan, hooks: Hooks) -> Times:
        graphs, lottery = self._captured(call, plan), Lottery(plan)

        def issue(turn: int) -> None:
            i = turn * plan.calls
            for graph, outputs in graphs:
                graph.replay()
                for output in outputs:
                    if lottery.keeps(i):
                        hooks.take(i, output)
                    i += 1

        times = self._time(issue, plan, hooks, lottery)
        return times if len(graphs) > 1 else replace(times, host_us=[])

    def _time(self, issue: Callable[[int], None], plan: Plan, hooks: Hooks, lottery: Lottery) -> Times:
        """`issue` makes the calls of a turn. Turns without calls are as long as the others but for these: ten
        microseconds of the host's, for reading the clocks, were half of a short call."""
        changed, start, end = (self._event(enable_timing=True) for _ in range(3))
        found, prime_us, count = Times([], []), plan.prime_us, plan.calls * plan.repeats
        hooks.prepare(0)
        for sample in range(plan.samples):
            lottery.begins(sample)
            ran_us, calls_ns, all_ns = 0.0, 0, 0
            for turn in range(sample * plan.turns, (sample + 1) * plan.turns):
                began, stream = self._settle(prime_us, partial(hooks.before, turn), changed)
                hooks.align()
                called = turn % plan.turns >= plan.turns - plan.repeats
                start.record(stream)
                before = _now_ns()
                if called:
                    issue(turn)
                issued = _now_ns()
                end.record(stream)
                if turn + 1 < plan.samples * plan.turns:
                    hooks.prepare(turn + 1)
                end.synchronize()
                ran_us += start.elapsed_time(end) * 1e3 * called
                calls_ns += (issued - before) * called
                all_ns += (issued - began) * called
            found.times_us.append(ran_us / count)
            found.lead_us.append(changed.elapsed_time(start) * 1e3)
            found.host_us.append(calls_ns / 1e3 / count)
            found.turning_us.append((all_ns - calls_ns) / 1e3 / plan.repeats)
            if sample not in lottery.audited:
                prime_us = self._next_prime_us(prime_us, plan, all_ns / plan.repeats, calls_ns / plan.repeats)
        found.audited.extend(sorted(lottery.audited))
        return found

    @staticmethod
    def _next_prime_us(prime_us: float, plan: Plan, turn_ns: float, calls_ns: float) -> float:
        """For how long the device is to be busy before the turns of the next sample: for half as much again as the host
        needed for the calls of one of this sample's turns, and for all that it did there. A host that waits for the
        device inside a call is always overtaken: its waiting is the candidate's own. Not asked of samples whose outputs
        were copied, which do not count: what the host does to copy is no part of a call."""
        return min(max(prime_us, (turn_ns + calls_ns / 2) / 1e3), plan.prime_limit_us)

    def forget(self) -> None:
        self._graphs.clear()

    def _captured(self, call: Callable[[int], Any], plan: Plan) -> list[_Captured]:
        """All calls of a sample in one graph whose outputs are there until its next replay, so that any can be copied
        when it has been replayed: nothing that is known while it is captured, or while it runs, tells which. Calls that
        return the same memory again leave only the last one's output there; each has a graph of its own."""
        key = (plan.calls, plan.communicator)
        if key not in self._graphs:
            graphs = self._capture(call, [range(plan.calls)])
            if _share_memory([output for _, outputs in graphs for output in outputs]):
                del graphs
                graphs = self._capture(call, [range(i, i + 1) for i in range(plan.calls)])
            self._graphs[key] = graphs
        return self._graphs[key]

    def _capture(self, call: Callable[[int], Any], parts: Sequence[range]) -> list[_Captured]:
        """A graph of the calls of each part. They are replayed in turn, so that what one has in between the next may
        overwrite."""
        import torch

        from harness.ring import map_tensors

        graphs: list[_Captured] = []
        try:
            for part in parts:
                graph, pool = torch.cuda.CUDAGraph(), graphs[0][0].pool() if graphs else None
                # thread_local: NCCL's watchdog thread may touch the driver while we capture.
                with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                    # Without what autograd has kept for a backward pass.
                    outputs = [map_tensors(call(i), lambda tensor: tensor) for i in part]
                graphs.append((graph, outputs))
        except Exception as error:
            with contextlib.suppress(Exception):
                self._synchronize()
            raise NotCapturableError(f"cannot be captured as a CUDA graph: {str(error).splitlines()[0]}") from None
        for graph, _ in graphs:
            graph.replay()  # the first replay uploads it
        return graphs

    def time_steady(self, call: Callable[[int], Any], iterations: int, tick: Callable[[], None]) -> list[float]:
        import torch

        marks = [torch.cuda.Event(enable_timing=True) for _ in range(iterations + 1)]
        marks[0].record()
        for i in range(iterations):
            call(i)
            marks[i + 1].record()
            tick()
        torch.cuda.synchronize()
        return [a.elapsed_time(b) * 1e3 for a, b in itertools.pairwise(marks)]

    def measure(self, rank: int, world_size: int) -> dict[str, float]:
        import torch
        import torch.distributed as dist

        size = 256 << 20
        memory = self.symmetric(size, sequence=-1)
        target = torch.empty(size, dtype=torch.uint8, device="cuda")
        peer = memory.peers[(rank + 1) % world_size]
        small = torch.ones(1 << 20, dtype=torch.bfloat16, device="cuda")
        large = torch.ones(128 << 20, dtype=torch.bfloat16, device="cuda")

        def median_us(run: Callable[[], Any]) -> float:
            plan = Plan(samples=13, prime_us=200.0)
            times = self.time_eager(lambda i: run(), plan, Hooks(memory.barrier)).times_us[3:]
            return sorted(times)[len(times) // 2]

        return {
            "peer_copy_gbps": size / median_us(lambda: target.copy_(peer)) / 1e3,
            "hbm_copy_gbps": 2 * size / median_us(lambda: target.copy_(memory.local)) / 1e3,
            "barrier_us": median_us(memory.barrier),
            "all_reduce_2mib_us": median_us(lambda: dist.all_reduce(small)),
            "all_reduce_256mib_us": median_us(lambda: dist.all_reduce(large)),
        }


def _share_memory(outputs: list[Any]) -> bool:
    """Whether any of them lies where another one does."""
    from harness.ring import tensors

    storages = [(tensor.untyped_storage(), i) for i, output in enumerate(outputs) for tensor in tensors(output)]
    spans = sorted((storage.data_ptr(), storage.data_ptr() + storage.nbytes(), i) for storage, i in storages)
    reaches, of = 0, -1
    for begin, end, i in spans:
        if begin < min(end, reaches) and i != of:
            return True
        if end > reaches:
            reaches, of = end, i
    return False


_DUMP_ENABLE, _DUMP_FILE, _DUMP_FLAGS = 1, 5, 7
_DUMP_LITTLE = 0b111111
"""No memory, no code, and no abort of the process afterwards."""


def dump_crashes(file: str) -> None:
    """In a rank, before its first use of the device: the driver writes a core dump to `file` (`%p`: the process) when a
    kernel crashes. By call, because the driver has read its variables when the fork server loaded it. Raises
    HarnessError."""
    import ctypes

    driver = ctypes.CDLL("libcuda.so.1")
    path, flags, on = ctypes.create_string_buffer(file.encode()), ctypes.c_uint(_DUMP_LITTLE), ctypes.c_bool(True)
    failed = driver.cuInit(0)
    for attribute, value in ((_DUMP_FILE, path), (_DUMP_FLAGS, flags), (_DUMP_ENABLE, on)):
        size = ctypes.c_size_t(ctypes.sizeof(value))
        failed = failed or driver.cuCoredumpSetAttributeGlobal(attribute, ctypes.byref(value), ctypes.byref(size))
    if failed:
        raise HarnessError(f"the driver makes no core dumps (error {failed})")


def rank_environment(devices: Sequence[int]) -> dict[str, str]:
    """Environment of a CUDA rank: the leased GPUs, numbered from 0, and multicast off."""
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, devices)), **machine.MULTICAST_SWITCHES}


def wait_gone(pids: Sequence[int], timeout_s: float = 10.0) -> list[int]:
    """Those of `pids` that the driver still lists on a GPU after waiting for them to leave.

    A killed process's memory returns a moment after its exit, when the driver has torn its context down."""
    deadline = time.monotonic() + timeout_s
    while True:
        left = sorted(set(pids) & _pids_on_gpus())
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.02)


def _pids_on_gpus() -> set[int]:
    """Processes with a compute context on any GPU, as NVML sees them."""
    import pynvml

    pynvml.nvmlInit()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return {process.pid for h in handles for process in pynvml.nvmlDeviceGetComputeRunningProcesses(h)}
    finally:
        pynvml.nvmlShutdown()


def cuda_home() -> str:
    """Folder of the CUDA toolkit, for torch's extension builder."""
    nvcc = shutil.which("nvcc")
    return os.environ.get("CUDA_HOME") or (str(Path(nvcc).resolve().parent.parent) if nvcc else "/usr/local/cuda")
