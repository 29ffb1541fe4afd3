"""What a rank does to be profiled: traced calls, plain ones, and calls under hardware counters. Apart from timing."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from harness.counters import Counters, CountersError
from harness.timeline import CALL

if TYPE_CHECKING:
    from harness.rank import Rank

_WARM_UP = 3
_AHEAD_MS, _AHEAD_FACTOR, _MAX_AHEAD_MS = 0.3, 4.0, 10.0
"""How long the device is kept busy before a traced call: issuing it takes longer when it is traced."""
_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+\s+(?P<path>.*)$")
_SYMMETRIC = re.compile(r"/symmetric\.\d+\.(\d+)\b")

Call = Callable[[int], Any]


def trace_calls(call: Call, iterations: int, rank: Rank, trace: Path) -> dict[str, Any]:
    """Each call alone: the device kept busy until the host is ahead, ranks aligned on it, drained afterwards. Writes a
    Chrome trace to `trace`."""
    device = "cuda" if rank.platform.name == "cuda" else None
    issue_s = 0.0
    for i in range(_WARM_UP):
        start = time.perf_counter()
        call(i)
        issue_s = time.perf_counter() - start
        rank.platform.synchronize()
    # Not torch.profiler.profile, which imports torch's compiler first: a second, and ten on a busy machine.
    with torch.autograd.profiler.profile(use_device=device, use_kineto=True) as profiler:
        for i in range(iterations):
            if device:
                rank.platform.delay(min(_MAX_AHEAD_MS, _AHEAD_MS + _AHEAD_FACTOR * issue_s * 1e3))
            rank.align()
            with torch.profiler.record_function(CALL):
                call(i)
                rank.platform.synchronize()
            rank.progress.touch()
    profiler.export_chrome_trace(str(trace))
    return {}


def repeat(call: Call, iterations: int, rank: Rank) -> dict[str, Any]:
    """Calls back to back, drained at the end. Reply: `seconds` of wall time and `cpu_s` of all this process's threads,
    and on cpu `touched`: [rank, bytes] of each rank's symmetric buffers that one call reads or writes, in pages."""
    rank.align()
    rank.platform.synchronize()
    cpu, start = time.process_time(), time.perf_counter()
    for i in range(iterations):
        call(i)
    rank.platform.synchronize()
    reply: dict[str, Any] = {"seconds": time.perf_counter() - start, "cpu_s": time.process_time() - cpu}
    if rank.platform.name == "cpu":
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("1", encoding="ascii")  # from here on the kernel notes pages used
            call(0)
            reply["touched"] = sorted(_referenced(Path("/proc/self/smaps").read_text(encoding="utf-8")).items())
    return reply


def _referenced(smaps: str) -> dict[int, int]:
    """By rank, the bytes of its symmetric buffers that were used since the kernel's notes were cleared."""
    found: dict[int, int] = {}
    owner: int | None = None
    for line in smaps.splitlines():
        if mapping := _MAPPING.match(line):
            named = _SYMMETRIC.search(mapping["path"])
            owner = int(named[1]) if named else None
        elif owner is not None and line.startswith("Referenced:"):
            found[owner] = found.get(owner, 0) + int(line.split()[1]) * 1024
    return found


def count(call: Call, message: dict[str, Any], rank: Rank) -> dict[str, Any]:
    """`iterations` calls for each of `sets` of counters. Reply: `counted`, for each set a list of ranges (all calls as
    one, or each kernel by itself), or `refused`: why not."""
    assert rank.device is not None
    counted: list[list[dict[str, float]]] = []

    def calls() -> None:
        for i in range(message["iterations"]):
            call(i)
        rank.platform.synchronize()

    try:
        counters = Counters(Path(message["library"]), rank.device.index)
        for names in message["sets"]:
            counted.append(counters.read(names, calls, rank.align, by_kernel=message["by_kernel"]))
            rank.progress.touch()
    except CountersError as error:
        return {"refused": str(error)}
    return {"counted": counted}
