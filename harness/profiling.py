"""Where the time of a candidate's calls goes, per rank: torch.profiler, summed over a few calls apart from timing."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch._C._autograd import DeviceType

if TYPE_CHECKING:
    from harness.rank import Rank

_TOP = 12


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
            with torch.profiler.record_function("solution"):
                call(i)
            rank.platform.synchronize()
            seconds += time.perf_counter() - start
            rank.progress.touch()
    profiler.export_chrome_trace(str(trace))
    rows = []
    for event in profiler.key_averages():
        if event.key in ("solution", "cudaDeviceSynchronize") or event.key.startswith(
            ("ProfilerStep", "Activity Buffer")
        ):
            continue
        on_device = event.device_type is not DeviceType.CPU
        rows.append(
            {
                "name": event.key,
                "device_us": event.self_device_time_total / iterations if on_device else 0.0,
                "host_us": 0.0 if on_device else event.self_cpu_time_total / iterations,
                "calls": event.count / iterations,
            }
        )
    rows.sort(key=lambda row: (row["device_us"], row["host_us"]), reverse=True)
    return {"iteration_us": seconds / iterations * 1e6, "top": rows[:_TOP]}


def merge_traces(parts: list[Path], merged: Path) -> None:
    """One Chrome trace of all ranks, tracks named by rank; for the supervisor, so the parts are only parsed."""
    events: list[dict[str, Any]] = []
    tracks: dict[tuple[int, Any], int] = {}
    for rank, part in enumerate(parts):
        for event in json.loads(part.read_text())["traceEvents"]:
            # Ranks share the ids of their tracks and flows (GPU 0, process 1, ...): renumber them all.
            event["pid"] = tracks.setdefault((rank, event.get("pid")), len(tracks) + 1)
            if "id" in event:
                event["id"] = f"{rank}.{event['id']}"
            if event.get("name") == "process_name":
                event["args"]["name"] = f"rank {rank}: {event['args']['name']}"
            events.append(event)
    merged.write_text(json.dumps({"traceEvents": events}))
