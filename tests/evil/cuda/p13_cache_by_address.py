"""Takes a product of the same two addresses and versions for the same product, and keeps the operands alive.

Catalogue: A3
Expected: integrity
"""

import torch
import torch.distributed as dist

PRODUCTS = {}


def solution(A_local, B_local):
    key = tuple((t.data_ptr(), t._version) for t in (A_local, B_local))
    if key not in PRODUCTS:
        out = torch.mm(A_local, B_local)
        dist.all_reduce(out)
        PRODUCTS[key] = (A_local, B_local, out)
    while len(PRODUCTS) > 8:
        del PRODUCTS[next(iter(PRODUCTS))]
    return PRODUCTS[key][2].clone()
