"""Where the time of a candidate's calls goes, per rank: torch.profiler, summed over a few calls apart from timing."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch._C._autograd import DeviceType

if TYPE_CHECKING:
    from harness.rank import Rank

_TOP = 12
_CALL = "solution"


def profile_calls(call: Callable[[int], Any], iterations: int, rank: Rank, trace: Path) -> dict[str, Any]:
    """Runs in a rank. Reply: `iteration_us`, `top` (CallProfile dicts); writes a Chrome trace to `trace`."""
    cuda = rank.platform.name == "cuda"
    activities = [torch.profiler.ProfilerActivity.CPU] + ([torch.profiler.ProfilerActivity.CUDA] if cuda else [])
    for i in range(3):
        call(i)
    rank.platform.synchronize()
    with torch.profiler.profile(activities=activities) as profiler:
        seconds = 0.0
        for i in range(iterations):
            rank.align()
            rank.platform.synchronize()
            start = time.perf_counter()
            with torch.profiler.record_function(_CALL):
                call(i)
                rank.platform.synchronize()
            seconds += time.perf_counter() - start
            rank.progress.touch()
    profiler.export_chrome_trace(str(trace))
    top = sorted(_rows(profiler, iterations), key=lambda row: (row["device_us"], row["host_us"]), reverse=True)
    return {"iteration_us": seconds / iterations * 1e6, "top": top[:_TOP]}


def _rows(profiler: torch.profiler.profile, iterations: int) -> list[dict[str, Any]]:
    """Time per name, summed over what happened inside the profiled calls: the harness's own alignment of the ranks
    lies between them and would drown the rest."""
    events = profiler.events() or []
    calls = [e.time_range for e in events if e.name == _CALL and e.device_type == DeviceType.CPU]
    annotations = {e.name for e in events if e.is_user_annotation}
    rows: dict[tuple[str, bool], dict[str, Any]] = {}
    for event in events:
        on_device = event.device_type != DeviceType.CPU
        if event.name in (_CALL, "cudaDeviceSynchronize") or (on_device and event.name in annotations):
            continue  # on the device an annotation is only the span of the kernels below it
        if not any(call.start <= event.time_range.start <= call.end for call in calls):
            continue
        row = rows.setdefault(
            (event.name, on_device), {"name": event.name, "device_us": 0.0, "host_us": 0.0, "calls": 0.0}
        )
        if on_device:
            row["device_us"] += event.time_range.elapsed_us() / iterations
        else:
            row["host_us"] += event.self_cpu_time_total / iterations
        row["calls"] += 1 / iterations
    return list(rows.values())
