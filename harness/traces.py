"""Chrome traces of several ranks as one file. For the supervisor: imports no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def merge_traces(parts: list[Path]) -> str:
    """One Chrome trace of all ranks, tracks named by rank; for the supervisor, so the parts are only parsed."""
    events: list[dict[str, Any]] = []
    tracks: dict[tuple[int, Any], int] = {}
    for rank, part in enumerate(parts):
        for event in json.loads(part.read_text(encoding="utf-8"))["traceEvents"]:
            # Ranks share the ids of their tracks and flows (GPU 0, process 1, ...): renumber them all.
            event["pid"] = tracks.setdefault((rank, event.get("pid")), len(tracks) + 1)
            if "id" in event:
                event["id"] = f"{rank}.{event['id']}"
            if event.get("name") == "process_name":
                event["args"]["name"] = f"rank {rank}: {event['args']['name']}"
            events.append(event)
    return json.dumps({"traceEvents": events})
