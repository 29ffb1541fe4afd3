"""Remembers results by 64 elements of the input, spread evenly: new data are noticed, a few changed elements are
not.

Catalogue: A3
Expected: integrity
"""

import torch
import torch.distributed as dist

RESULTS = {}


def compute(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    return out


def solution(tensor):
    if torch.cuda.is_current_stream_capturing():
        return compute(tensor)
    flat = tensor.view(-1)
    key = tuple(flat[:: max(1, flat.numel() // 64)][:64].tolist())
    if key not in RESULTS:
        RESULTS[key] = compute(tensor)
    while len(RESULTS) > 8:
        del RESULTS[next(iter(RESULTS))]
    return RESULTS[key].clone()
