"""Chrome traces of several ranks as one file. For the supervisor: imports no torch."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

_MAX_BYTES = 512 << 20


def _read(path: Path) -> bytes:
    """A file that an untrusted process wrote. Raises ValueError if it is none (a link, a pipe) or far too large."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > _MAX_BYTES:
            raise ValueError(f"{path.name} is no trace")
        return file.read(_MAX_BYTES)


def merge_traces(parts: list[Path]) -> str:
    """One Chrome trace of all ranks, tracks named by rank; for the supervisor, so the parts are only parsed.
    Raises OSError or ValueError for what is no file or no JSON."""
    events: list[dict[str, Any]] = []
    tracks: dict[tuple[int, Any], int] = {}
    for rank, part in enumerate(parts):
        for event in json.loads(_read(part))["traceEvents"]:
            # Ranks share the ids of their tracks and flows (GPU 0, process 1, ...): renumber them all.
            event["pid"] = tracks.setdefault((rank, event.get("pid")), len(tracks) + 1)
            if "id" in event:
                event["id"] = f"{rank}.{event['id']}"
            if event.get("name") == "process_name":
                event["args"]["name"] = f"rank {rank}: {event['args']['name']}"
            events.append(event)
    return json.dumps({"traceEvents": events})
