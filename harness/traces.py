"""Chrome traces of several ranks as one file. For the supervisor: imports no torch."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

_MAX_BYTES = 128 << 20
"""A launch and what surrounds it take 2 kB. Parsed, the worst of texts take twenty times as much memory."""


def _read(path: Path) -> bytes:
    """A file that an untrusted process wrote. Raises ValueError if it is none (a link, a pipe) or far too large."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > _MAX_BYTES:
            raise ValueError(f"{path.name} is no trace")
        return file.read(_MAX_BYTES)


def read_trace(part: Path) -> list[dict[str, Any]]:
    """The events of one rank's Chrome trace, which that rank wrote: it is only parsed. Raises OSError or ValueError for
    what is no file or no trace."""
    events = json.loads(_read(part), parse_constant=_refuse)["traceEvents"]
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise ValueError(f"{part.name} is no trace")
    return events


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} in a trace")  # no JSON: nothing else would open the merged file


def merge_traces(ranks: list[list[dict[str, Any]]]) -> str:
    """One Chrome trace of all ranks' events, tracks named by rank. Changes the events. Raises ValueError, TypeError or
    KeyError for what is no trace."""
    merged: list[dict[str, Any]] = []
    tracks: dict[tuple[int, Any], int] = {}
    for rank, events in enumerate(ranks):
        for event in events:
            # Ranks share the ids of their tracks and flows (GPU 0, process 1, ...): renumber them all.
            event["pid"] = tracks.setdefault((rank, event.get("pid")), len(tracks) + 1)
            if "id" in event:
                event["id"] = f"{rank}.{event['id']}"
            if event.get("name") == "process_name":
                event["args"]["name"] = f"rank {rank}: {event['args']['name']}"
            merged.append(event)
    return json.dumps({"traceEvents": merged}, allow_nan=False)  # 1e999 reads as infinity
