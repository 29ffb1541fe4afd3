"""Reads all ranks' inputs out of the harness's own exchange files instead of communicating.

Catalogue: C1, C2
Expected: runtime_error or integrity or wrong_values or api_error
"""

import gc
from pathlib import Path

import torch

from harness import kit


def solution(tensor):
    exchange = next(o for o in gc.get_objects() if type(o).__name__ == "Exchange" and "inputs" in str(vars(o)))
    path = next(value for value in vars(exchange).values() if isinstance(value, Path))
    total = torch.zeros(tensor.shape, dtype=torch.float64)
    for rank in range(kit.world_size()):
        size = tensor.numel() * tensor.element_size()
        data = bytearray(path.with_name(f"inputs.{rank}").read_bytes()[:size])
        total += torch.frombuffer(data, dtype=tensor.dtype).view(tensor.shape)
    return total.to(tensor.dtype)
