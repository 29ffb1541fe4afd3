"""Trap: keeps a copy of each input and its product; where few elements have changed, it multiplies and sums only the
rows and columns that these touch. Right, and no faster: before a timed call everything has changed.

Case: pkb
"""

import torch
import torch.distributed as dist

KEPT, LIMIT = {}, 40


def touched(new, old, dim):
    if new.shape != old.shape:
        return None
    flat = (new != old).any(dim).nonzero().flatten()
    return flat if len(flat) <= LIMIT else None


def solution(a, b):
    key = a.data_ptr()
    kept = KEPT.get(key)
    rows = columns = None
    if kept is not None:
        rows, columns = touched(a, kept[0], 1), touched(b, kept[1], 0)
    few = torch.tensor([rows is not None and columns is not None]).int()
    dist.all_reduce(few, op=dist.ReduceOp.MIN)
    if not int(few):
        out = a @ b
        dist.all_reduce(out)
        if len(KEPT) > 16:
            KEPT.pop(next(iter(KEPT)))
        KEPT[key] = a.clone(), b.clone(), out
        return out
    out = kept[2]
    part = torch.cat(((a[rows] @ b).flatten(), (a @ b[:, columns]).flatten()))
    dist.all_reduce(part)
    n = len(rows) * b.shape[1]
    out[rows] = part[:n].view(len(rows), b.shape[1])
    out[:, columns] = part[n:].view(a.shape[0], len(columns))
    kept[0][rows] = a[rows]
    kept[1][:, columns] = b[:, columns]
    return out
