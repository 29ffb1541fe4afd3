"""Uneven all-to-all of rows: each rank publishes its rows and its split sizes; a receiver works out from a sender's
splits where its rows begin there, and pulls them.
"""

import torch

from harness import kit

_buffers = {}


def _buffers_for(tensor):
    key = (tuple(tensor.shape), tensor.dtype)  # the same on every rank, only the splits differ
    if key not in _buffers:
        rows = kit.symmetric(tensor.shape, tensor.dtype)
        splits = kit.symmetric((kit.world_size(),), torch.int64)
        _buffers[key] = rows, splits
    return _buffers[key]


def solution(local_tensor, input_split_sizes=None, output_split_sizes=None, group=None):
    rank, world = kit.rank(), kit.world_size()
    if input_split_sizes is None:
        input_split_sizes = [local_tensor.shape[0] // world] * world
        output_split_sizes = input_split_sizes
    rows, splits = _buffers_for(local_tensor)

    rows.local.copy_(local_tensor)
    splits.local.copy_(torch.tensor(input_split_sizes))
    rows.barrier()  # rows and splits of all ranks are there

    out = local_tensor.new_empty(sum(output_split_sizes), *local_tensor.shape[1:])
    at = 0
    for source in range(world):
        theirs = splits.peer(source).tolist()
        begin, count = sum(theirs[:rank]), theirs[rank]
        out[at : at + count] = rows.peer(source)[begin : begin + count]
        at += count
    rows.barrier()  # all have read
    return out
