"""The static gate: few and certain rules about what this host forbids, applied to a candidate's source before anything
is loaded, and to what its compilers made before that is loaded.

Behaviour is judged elsewhere; this is about what must not run even once. Comments and docstrings do not count.
`RINGSMITH_ALLOW=multicast` in the operator's environment permits NVLink multicast on a host of one's own; changing GPU
settings is never permitted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from harness.code_text import pieces
from harness.machine import MULTICAST_SWITCHES

ALLOW_VARIABLE = "RINGSMITH_ALLOW"


class PolicyError(Exception):
    """A built object holds what this host forbids; the text says what."""


# Python itself takes seconds to parse some of this size, and the square of it: this runs in the supervisor.
_MAX_BYTES = 256 << 10

# On a shared host these have put the GPUs of everybody out of service; no environment variable stops a candidate.
_START = r"(?:(?<!\w)|(?<=\\[a-z]))"  # of a word, which the escape of a line break may stand before
_MULTICAST = (
    rf"{_START}(?:cuMulticast\w*|CUmulticast\w*|CU_MULTICAST\w*|_*multimem(?![A-Za-z0-9])[\w.]*|nvshmemx_mc_ptr\w*"
    r"|nccl\w*Multimem\w*|lsaMultimem\w*|\w*multicast_ptr\w*)"
)
_SWITCH = rf"{_START}(?:{'|'.join([*MULTICAST_SWITCHES, ALLOW_VARIABLE])})\b"
# Options of nvidia-smi that change something. (`-l`, `-i`, `-q`, `-d`, `-f`, `-x` and --query-... only ask.)
_SMI_OPTION = (
    r"-(?:r|pm|pl|ac|rac|lgc|rgc|lmc|rmc|lmcd|rmcd|c|e|p|mig|acp|am|caa|cc|gom|dm|fdm|cgi|dgi|cci|dci|sc)"
    r"|--(?:gpu-reset|persistence-mode|power-limit|applications-clocks|reset-applications-clocks|lock-gpu-clocks"
    r"|reset-gpu-clocks|lock-memory-clocks|reset-memory-clocks|lock-memory-clocks-deferred"
    r"|reset-memory-clocks-deferred|compute-mode|ecc-config|reset-ecc-errors|multi-instance-gpu|applications-clocks-permission"
    r"|accounting-mode|clear-accounted-apps|gpu-operation-mode|driver-model|force-driver-model|auto-boost-default"
    r"|create-gpu-instance|destroy-gpu-instance|create-compute-instance|destroy-compute-instance)"
)
_SMI_ASKS = "dmon|pmon|topo|nvlink"  # with options of their own by the same letters
_SETTINGS = (
    rf"{_START}(?:nvmlDevice(?:Set|Reset)\w+|nvmlDeviceCreateGpuInstance\w*|nvmlGpuInstanceDestroy\w*)"
    rf"|{_START}nvidia-smi\b(?![^\S\n]+(?:{_SMI_ASKS})\b)(?:[^\S\n]+[^\s;|&]+){{0,12}}?[^\S\n]+(?:{_SMI_OPTION})(?=[\s=\d'\"]|$)"
)
_SOURCE_RULES = (
    ("multicast", re.compile(_MULTICAST, re.A), "NVLink multicast is forbidden on this host"),
    ("multicast", re.compile(_SWITCH, re.A), "the switches of NVLink multicast are the host's"),
    ("settings", re.compile(_SETTINGS, re.A), "changing GPU settings is forbidden on this host"),
)
# An object holds the names of all that its headers drag in: only what cannot be there by chance.
_OBJECT_RULES = (
    (
        "multicast",
        re.compile(r"\bcuMulticast\w+|\bmultimem\.(?:ld_reduce|st|red|cp)\b[\w.:]*", re.A),
        _SOURCE_RULES[0][2],
    ),
    *_SOURCE_RULES[1:],
)
_NCCL = re.compile(
    r"\blibnccl\w*|\bnccl\.h\b|-lnccl\b|\bp?nccl(?:AllReduce|ReduceScatter|AllGather|AlltoAll|Broadcast|Bcast|Reduce|Gather"
    r"|Scatter|Send|Recv|Comm\w+|Group(?:Start|End))\b|\b(?:torch|cupy)\.cuda\.nccl\b",
    re.A,
)


def allowed() -> frozenset[str]:
    """What the operator permits on this host: the words in `RINGSMITH_ALLOW`, of which `multicast` means something."""
    return frozenset(re.split(r"[\s,]+", os.environ.get(ALLOW_VARIABLE, ""))) & {"multicast"}


def too_long(source: str) -> str | None:
    """Why a source is not even read, or None."""
    size = len(source.encode(errors="replace"))
    return f"the source has {size} bytes; at most {_MAX_BYTES} are read" if size > _MAX_BYTES else None


def violation(source: str, allow: frozenset[str] = frozenset()) -> str | None:
    """The first forbidden feature in a candidate's source, with its line, or None. `allow` as of `allowed()`."""
    if (long := too_long(source)) is not None:
        return long
    there = pieces(source)
    for topic, pattern, reason in _SOURCE_RULES:
        if topic in allow:
            continue
        matches = ((piece, pattern.search(piece.text)) for piece in there)
        found = [(piece.line(match.start()), match[0]) for piece, match in matches if match]
        if found:
            line, name = min(found)
            return f"{reason}: line {line} names {name[:80]!r}"
    return None


def names_nccl(source: str) -> str | None:
    """What in a candidate's source uses NCCL other than through torch.distributed, or None. A hint, not a refusal.
    Nothing is looked for in one that is `too_long`."""
    if too_long(source):
        return None
    return next((match[0] for piece in pieces(source) if (match := _NCCL.search(piece.text))), None)


def names_multicast(source: str) -> bool:
    """Whether a candidate's source names NVLink multicast."""
    return any(_SOURCE_RULES[0][1].search(piece.text) for piece in pieces(source))


def check_object(path: Path, texts: Iterable[Path] = (), allow: frozenset[str] = frozenset()) -> None:
    """Raises PolicyError if a compiled library, or one of the PTX texts that its device code was made from, holds
    something forbidden. Call before the library is loaded."""
    for file in (path, *texts):
        text = file.read_bytes().decode("latin-1")
        for topic, pattern, reason in _OBJECT_RULES:
            if topic not in allow and (match := pattern.search(text)):
                raise PolicyError(f"{reason}: the compiled code contains {match[0][:80]!r}")
