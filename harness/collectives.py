"""Whether a candidate used torch.distributed's collectives: a number that each of them raises.

c10d numbers the collectives of each process group, on gloo as on NCCL. Not seen: a collective inside a CUDA graph that
is replayed (its capture is), unbatched `send` and `recv` on NCCL, backends that are made without `new_group`, and NCCL
called directly (`policy.names_nccl`).
"""

from __future__ import annotations

import contextlib
from typing import Any

from torch._C._distributed_c10d import Backend, ProcessGroup
from torch.distributed import distributed_c10d

# Bound before any candidate can replace them.
_world = distributed_c10d._world
_backend_of: Any = ProcessGroup._get_backend
_devices_of: Any = vars(ProcessGroup)["_device_types"].__get__
_number_of: Any = vars(Backend)["_get_sequence_number_for_group"]
_known: dict[str, int] = {}
"""Highest number seen by group name: what a destroyed group has done still counts."""


def count() -> int | None:
    """Collectives issued so far on all process groups of this process, plus the groups ever made: one that was made,
    used and destroyed between two looks shows too. Takes a few microseconds. None if a candidate has broken the books.
    Compare for inequality: starting torch.distributed anew starts from nothing."""
    try:
        for group in list(_world.pg_map):
            name = str(group.group_name)
            _known[name] = max(_known.get(name, 0), _issued(group))
        return sum(_known.values()) + int(_world.group_count)
    except Exception:
        return None


def _issued(group: ProcessGroup) -> int:
    """By all backends of a group; a backend that keeps no numbers counts as none."""
    total = 0
    for backend in {_backend_of(group, device) for device in _devices_of(group)}:
        with contextlib.suppress(RuntimeError):
            total += _number_of(backend)
    return total
