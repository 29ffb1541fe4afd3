"""The static gate: few and certain rules about what this host forbids, applied before anything is loaded."""

from __future__ import annotations

import re

# On a shared host these have put the GPUs of everybody out of service; no environment variable stops a candidate.
_FORBIDDEN = (
    (r"cuMulticast\w*|multimem|CU_MULTICAST\w*", "NVLink multicast is forbidden on this host"),
    (
        r"nvmlDeviceSet\w+|nvmlDeviceReset\w+|nvidia-smi\s+(?:-r|-pm|-pl|-ac|-rac|-lgc|-rgc|-lmc|-rmc|-c|-mig|--gpu-reset)\b",
        "changing GPU settings is forbidden on this host",
    ),
)


def violation(source: str) -> str | None:
    """The first forbidden feature in a candidate's source, with its line, or None."""
    for pattern, reason in _FORBIDDEN:
        if match := re.search(pattern, source):
            line = source.count("\n", 0, match.start()) + 1
            return f"{reason}: line {line} names {match[0]!r}"
    return None
