"""What is watched inside a candidate's process: functions that must stay what they were, outputs that must be plain
tensors, threads and memory that must not grow with every call.

A candidate that goes to enough trouble can deceive all of this, as it runs in the same process. It makes cheating
visible early and names it; what decides is judged outside (`stress.py`, `timing.py`).
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import gc
import os
import re
import sys
import time
import types
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._device import DeviceContext

from harness.ring import tensors

_MODULES = (
    "candidate_rank",
    "collectives",
    "exchange",
    "guard",
    "platforms",
    "platforms.cpu",
    "platforms.cuda",
    "shelf",
    "progress",
    "rank",
    "ring",
    "wire",
)
_OPERATORS = (
    "aten::copy_", "aten::clone", "aten::_foreach_copy_", "aten::equal", "aten::detach", "aten::view",
    "aten::as_strided", "aten::slice.Tensor", "aten::empty.memory_format", "aten::empty_strided", "aten::empty_like",
    "aten::contiguous", "aten::split_with_sizes", "aten::narrow",
)  # fmt: skip
"""What writing inputs, and copying and comparing outputs, call."""
_REAL = re.compile(r"(?:CPU|CUDA|Autograd\w*|Autocast\w*|ADInplaceOrView|BackendSelect|Composite\w*|Tracer)\b").match
"""Lines of torch's table of an operator's kernels that tensors with data can reach."""
_TENSOR_KINDS = torch.Tensor.__mro__
_kernels_of, _dispatch_modes = torch._C._dispatch_dump, torch._C._len_torch_dispatch_stack
_function_modes, _function_mode = torch._C._len_torch_function_stack, torch._C._get_function_stack_at
_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: 0)  # glibc's
# Bound before any candidate can replace them, or put a name of its own before them.
_type, _id, _vars, _random_bytes, _callable, _is_a = type, id, vars, os.urandom, callable, isinstance
_attribute, _sorted, _builtins = getattr, sorted, vars(builtins)
_ONE_IN_EIGHT = b"\x20"  # of 256 random bytes, 32 are below


def _watched(modules: dict[str, types.ModuleType]) -> Iterator[tuple[str, Any]]:
    """Names and objects that timing and judging rely on; of these modules everything that can be called, and what
    stands before a built-in name."""
    for name in ("perf_counter_ns", "perf_counter", "monotonic", "monotonic_ns", "time", "time_ns", "sleep"):
        yield f"time.{name}", _attribute(time, name)
    for name in ("synchronize", "Event", "Stream", "CUDAGraph", "graph", "_sleep", "current_stream"):
        yield f"torch.cuda.{name}", _attribute(torch.cuda, name)
    for name in ("record", "elapsed_time", "synchronize", "wait"):
        yield f"torch.cuda.Event.{name}", _attribute(torch.cuda.Event, name)
    for name in ("replay", "capture_begin", "capture_end"):
        yield f"torch.cuda.CUDAGraph.{name}", _attribute(torch.cuda.CUDAGraph, name)
    for name in ("clone", "copy_", "set_", "data_ptr", "untyped_storage", "index_copy_", "view", "to", "fill_"):
        yield f"torch.Tensor.{name}", _attribute(torch.Tensor, name)
    for name in ("equal", "empty", "empty_like", "zeros", "full", "from_file", "sum", "is_tensor"):
        yield f"torch.{name}", _attribute(torch, name)
    for name in ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "barrier"):
        yield f"torch.distributed.{name}", _attribute(dist, name)
    for name, value in _builtins.items():
        if name != "_":  # what an interactive interpreter, or gettext, puts there
            yield f"builtins.{name}", value
    yield "torch.nn.Linear", torch.nn.Linear
    yield "torch.utils._device.DeviceContext.__torch_function__", DeviceContext.__torch_function__
    for name, module in modules.items():
        yield f"sys.modules[{name}]", sys.modules.get(name)
        for key, value in _vars(module).items():
            if not (_callable(value) or key in _builtins):
                continue
            yield f"{name}.{key}", value
            if _is_a(value, _type) and value.__module__ == name:
                for method, function in _vars(value).items():
                    if _is_a(function, types.FunctionType):
                        yield f"{name}.{key}.{method}", function


def _of_tensors() -> dict[str, Any]:
    """Everything that a tensor has, as it stands in its classes."""
    found: dict[str, Any] = {}
    for kind in reversed(_TENSOR_KINDS):
        found.update(_vars(kind))
    return found


def _kernels() -> dict[str, list[str]]:
    """What torch runs for the operators by which the harness copies and compares. Others' imports may add kernels for
    tensors without data (`Meta`) and the like."""
    return {name: [line for line in _kernels_of(name).splitlines() if _REAL(line)] for name in _OPERATORS}


def _modes() -> Iterator[str]:
    """Modes of torch that are on between calls: they see, and may change, what the harness does with tensors.
    `torch.set_default_device` is one that leaves tensors alone."""
    if _dispatch_modes():
        yield "torch's operators (a TorchDispatchMode is still on)"
    if any(_type(_function_mode(number)) is not DeviceContext for number in range(_function_modes())):
        yield "torch's functions (a TorchFunctionMode is still on)"


class Tripwire:
    """Taken before the candidate is imported; `tripped` names what is no longer what it was."""

    def __init__(self) -> None:
        names = [f"harness.{name}" for name in _MODULES]
        self._modules = {name: sys.modules[name] for name in names if name in sys.modules}
        watched = [*_watched(self._modules)]
        self._known = {name: self._identity(value) for name, value in watched}
        self._keep = [value for _, value in watched]  # an id means something only while its object lives
        self._tensors, self._operators = _of_tensors(), _kernels()
        self._noted: list[str] = []

    def look(self, *, briefly: bool = False) -> None:
        """When an output is about to be copied: notes for `tripped` what may be put right again before that is asked.
        Modes always; the rest, which takes half a millisecond, by chance, and not `briefly`."""
        if not self._noted:
            whole = not briefly and _random_bytes(1) < _ONE_IN_EIGHT
            self._noted = self._changed() if whole else _sorted(_modes())

    def tripped(self) -> list[str]:
        """Names of what has changed: what `look` has noted, else what is different now; five at most."""
        return self._noted or self._changed()

    def _changed(self) -> list[str]:
        try:
            now = {name: self._identity(value) for name, value in _watched(self._modules)}
            tensors, operators, modes = _of_tensors(), _kernels(), [*_modes()]
        except Exception as error:
            return [f"({_type(error).__name__} when looking)"]
        found = [name for name, identity in self._known.items() if now.get(name) != identity]
        # A new name in a module of ours stands before the built-in one, or before one of torch's.
        found += [name for name in now if name not in self._known and not name.startswith("builtins.")]
        found += [f"torch.Tensor.{name}" for name, value in self._tensors.items() if tensors.get(name) is not value]
        found += [f"the kernels of {name}" for name, lines in self._operators.items() if operators[name] != lines]
        return _sorted({*found, *modes})[:5]

    @staticmethod
    def _identity(value: Any) -> tuple[int, int]:
        return _id(value), _id(getattr(value, "__code__", None))


_PLAIN = {
    "AsyncCollectiveTensor": "wait for it with `.wait()`",
    "DTensor": "return its `.to_local()` or `.full_tensor()`",
    "Parameter": "return its `.detach()`",
    "": "return `.as_subclass(torch.Tensor)` of it",
}
"""How to come by a plain tensor."""


def not_plain(output: Any) -> str | None:
    """Why an output holds something that is not exactly a tensor with memory of its own, or None. A subclass or an
    attribute can put off the work until somebody looks."""
    for index, tensor in enumerate(tensors(output)):
        if _type(tensor) is not torch.Tensor:
            name = _type(tensor).__name__
            return f"output tensor {index} is a {name}, not a plain torch.Tensor: {_PLAIN.get(name, _PLAIN[''])}"
        if tensor.is_conj() or tensor.is_neg():  # a bit: whoever reads it does the work
            name = "conj" if tensor.is_conj() else "neg"
            return f"output tensor {index} is a lazy view: return its `.resolve_{name}()`"
        if tensor.__dict__:
            return f"output tensor {index} has attributes of its own: {', '.join(sorted(tensor.__dict__))[:80]}"
    return None


def shared_with(output: Any, arguments: Any) -> bool:
    """Whether an output lies in the memory of an input."""
    inputs = {t.untyped_storage().data_ptr() for t in tensors(arguments) if t.numel()}
    return any(
        t.untyped_storage().data_ptr() in inputs for t in tensors(output) if t.numel() and t.layout is torch.strided
    )


def footprint(on_gpu: bool, collect: bool) -> dict[str, int]:
    """Threads of this process, and bytes that it holds on host and device; with `collect` without what only waits for
    the garbage collector, which takes a tenth of a second."""
    if collect:
        gc.collect()
    # What has been freed goes back to the kernel first, and only what is nobody else's counts: neither the allocator's
    # reserve nor the files by which outputs are handed over.
    _malloc_trim(0)
    with open("/proc/self/status", encoding="ascii") as file:
        host = next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon:"))
    device = 0
    if on_gpu:
        with contextlib.suppress(RuntimeError):
            free, total = torch.cuda.mem_get_info()
            # What torch's allocator keeps for later use is not held by the candidate.
            device = total - free - torch.cuda.memory_reserved() + torch.cuda.memory_allocated()
    return {"threads": len(os.listdir("/proc/self/task")), "host_bytes": host, "device_bytes": device}
