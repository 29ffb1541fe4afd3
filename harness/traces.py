"""Chrome traces of several ranks as one file. For the supervisor: imports no torch."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_MAX_BYTES, _MAX_VALUES = 16_000_000, 1_000_000
"""Of one rank. A launch and what surrounds it take 2 kB and a hundred values. Parsed, the worst of both take
350 MB of memory."""


class LargeTraceError(Exception):
    """It may be honest, but reading it could take all memory. The message says how large it is and may be."""


def _read(path: Path) -> bytes:
    """A file that an untrusted process wrote. Raises ValueError if it is none (a link, a pipe), and LargeTraceError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise ValueError(f"{path.name} is no trace")
        if facts.st_size > _MAX_BYTES:
            raise LargeTraceError(
                f"{facts.st_size / 1e6:.0f} MB, and {_MAX_BYTES / 1e6:.0f} MB is the most that is read"
            )
        text = file.read(_MAX_BYTES)
    values = sum(text.count(before) for before in (b",", b"[", b"{"))
    if values > _MAX_VALUES:
        raise LargeTraceError(f"{values} values, and {_MAX_VALUES} is the most that is read")
    return text


def read_trace(part: Path) -> list[dict[str, Any]]:
    """The events of one rank's Chrome trace, which that rank wrote: it is only parsed. Raises OSError or ValueError for
    what is no file or no trace, and LargeTraceError."""
    events = json.loads(_read(part), parse_constant=_refuse)["traceEvents"]
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise ValueError(f"{part.name} is no trace")
    return events


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} in a trace")  # no JSON: nothing else would open the merged file


def merge_traces(ranks: Iterable[list[dict[str, Any]]]) -> str:
    """One Chrome trace of all ranks' events, tracks named by rank. Changes the events, and keeps those of one rank at
    a time: as text they take much less. Raises ValueError, TypeError or KeyError for what is no trace."""
    merged: list[str] = []
    tracks: dict[tuple[int, Any], int] = {}
    for events in ranks:  # `enumerate` would hold on to the last ones
        rank = len(merged)
        for event in events:
            # Ranks share the ids of their tracks and flows (GPU 0, process 1, ...): renumber them all.
            event["pid"] = tracks.setdefault((rank, event.get("pid")), len(tracks) + 1)
            if "id" in event:
                event["id"] = f"{rank}.{event['id']}"
            if event.get("name") == "process_name":
                event["args"]["name"] = f"rank {rank}: {event['args']['name']}"
        merged.append(json.dumps(events, allow_nan=False)[1:-1])  # 1e999 reads as infinity
        del events  # before the next rank's are read
    return f'{{"traceEvents": [{", ".join(filter(None, merged))}]}}'
