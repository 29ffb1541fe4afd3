"""Uses what looks at frames on its own behalf: logging, warnings, named tuples, an error's text, a custom operator."""

import collections
import inspect
import logging
import traceback
import warnings

import torch
import torch.distributed as dist

Shape = collections.namedtuple("Shape", "rows columns")


@torch.library.custom_op("candidate::twin", mutates_args=())
def twin(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone()


def solution(tensor):
    shape = collections.namedtuple("Here", "rows columns")(*tensor.shape)
    logging.getLogger("candidate").info("%d rows", shape.rows)
    try:
        tensor.view(-1, 3, 5, 7, 11, 13)
    except RuntimeError:
        traceback.format_exc()
    warnings.warn("as it should be", stacklevel=2)
    assert "tensor" in inspect.signature(solution).parameters
    out = twin(tensor)
    dist.all_reduce(out)
    return out
