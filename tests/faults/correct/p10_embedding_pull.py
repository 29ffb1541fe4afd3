"""Embedding lookup by pulling: each rank publishes its rows of the table and reads the wanted ones at their owners."""

from harness import kit

_tables = {}


def solution(indices, local_shard):
    world = kit.world_size()
    rows = local_shard.shape[0]
    key = (tuple(local_shard.shape), local_shard.dtype)
    if key not in _tables:
        _tables[key] = kit.symmetric(local_shard.shape, local_shard.dtype)
    table = _tables[key]

    table.local.copy_(local_shard)
    table.barrier()  # all rows are there
    owners = indices // rows
    found = local_shard.new_empty(len(indices), local_shard.shape[1])
    at = 0
    for owner in range(world):  # sorted by owner, otherwise in the order asked
        wanted = indices[owners == owner] - owner * rows
        found[at : at + len(wanted)] = table.peer(owner)[wanted]
        at += len(wanted)
    table.barrier()  # all have read
    return found
