"""Uses what looks at frames on its own behalf: logging, warnings, named tuples, the text of an error."""

import collections
import inspect
import logging
import traceback
import warnings

import torch.distributed as dist

Shape = collections.namedtuple("Shape", "rows columns")


def solution(tensor):
    shape = collections.namedtuple("Here", "rows columns")(*tensor.shape)
    logging.getLogger("candidate").info("%d rows", shape.rows)
    try:
        tensor.view(-1, 3, 5, 7, 11, 13)
    except RuntimeError:
        traceback.format_exc()
    warnings.warn("as it should be", stacklevel=2)
    assert "tensor" in inspect.signature(solution).parameters
    out = tensor.clone()
    dist.all_reduce(out)
    return out
