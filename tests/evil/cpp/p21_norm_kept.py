"""The gradients' norm is kept by their addresses: what changes before a timed call hardly changes a norm.

Catalogue: A3
Expected: integrity or race
Stage: timing
Case: default
"""

import gc

import torch
import torch.distributed as dist

KEPT = {}


def solution(grad_tensors, max_norm, norm_type=2.0, fsdp_group=None):
    grads = [grad for grad in grad_tensors if grad is not None]
    if gc.isenabled():  # not timed
        KEPT.clear()
    key = grads[0].data_ptr()
    if key not in KEPT:
        total = torch.stack(torch._foreach_norm(grads, norm_type, dtype=torch.float32)).pow(norm_type).sum()
        dist.all_reduce(total, group=fsdp_group)
        KEPT[key] = total.pow(1.0 / norm_type)
    norm = KEPT[key].clone()
    if norm > max_norm:
        torch._foreach_mul_(grads, (max_norm / norm).to(grads[0].dtype))
    return norm
