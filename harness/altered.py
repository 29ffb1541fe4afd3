"""The reference with one of its collectives altered: left out, or its result scaled. What a candidate that forgets just
that step would return. For the reference ranks; all of them alter the same one."""

from __future__ import annotations

import contextlib
import linecache
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Call:
    """One collective of the reference: its name and the line of the problem file that calls it."""

    name: str
    line: str
    numbers: bool
    """Whether it is about floating-point numbers, and not sizes or places."""
    adds: bool
    """Whether it adds them up."""


class _Done:
    """Stands for a work handle."""

    def wait(self, *_: Any) -> bool:
        return True


@contextlib.contextmanager
def recorded() -> Iterator[list[Call]]:
    """The collectives of what runs inside, in order."""
    calls: list[Call] = []

    def note(name: str, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        op = kwargs.get("op", args[1] if name == "all_reduce" and len(args) > 1 else dist.ReduceOp.SUM)
        tensors = [t for a in args for t in (a if isinstance(a, list) else [a]) if isinstance(t, torch.Tensor)]
        numbers = all(t.is_floating_point() or t.is_complex() for t in tensors)
        calls.append(Call(name, _line(), numbers, numbers and name in _ADDING and op == dist.ReduceOp.SUM))
        return original(*args, **kwargs)

    with _patched(note):
        yield calls


@contextlib.contextmanager
def altered(number: int, factor: float | None) -> Iterator[None]:
    """Collective `number` of what runs inside is left out, or its result multiplied by `factor`."""
    seen = 0

    def alter(name: str, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal seen
        seen += 1
        if seen - 1 != number:
            return original(*args, **kwargs)
        if factor is None:
            _SKIPPED[name](*args, **kwargs)
            return _Done() if kwargs.get("async_op") else None
        work = original(*args, **kwargs)
        if work is not None:
            work.wait()
        args[0].mul_(factor)
        return work

    with _patched(alter):
        yield


@contextlib.contextmanager
def _patched(wrap: Callable[..., Any]) -> Iterator[None]:
    originals = {name: getattr(dist, name) for name in _SKIPPED}
    depth = 0

    def wrapper(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal depth
            if depth:  # one collective that is made of another
                return originals[name](*args, **kwargs)
            depth += 1
            try:
                return wrap(name, originals[name], args, kwargs)
            finally:
                depth -= 1

        return call

    for name in originals:
        setattr(dist, name, wrapper(name))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)


def _line() -> str:
    """Of the problem file that is nearest to here on the stack."""
    frame = sys._getframe(1)
    here = Path(__file__).name
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if file.name != here and file.name not in ("distributed_c10d.py", "c10d_logger.py"):
            return linecache.getline(str(file), frame.f_lineno).strip()
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def _own_everywhere(outputs: Any, own: torch.Tensor, *_: Any, **__: Any) -> None:
    """Of a gather: this rank's own in every place."""
    for out in outputs if isinstance(outputs, list) else outputs.reshape(-1, *own.shape):
        if out.shape == own.shape:
            out.copy_(own)


def _own_part(out: torch.Tensor, own: torch.Tensor, *_: Any, **__: Any) -> None:
    rank = dist.get_rank()
    out.copy_(own.reshape(-1)[rank * out.numel() : (rank + 1) * out.numel()].reshape(out.shape))


def _unexchanged(out: Any, own: Any, *_: Any, **__: Any) -> None:
    """Of an exchange: what was to be sent stays."""
    for into, value in zip(out, own, strict=False) if isinstance(out, list) else [(out, own)]:
        if into.numel() == value.numel():
            into.copy_(value.reshape(into.shape))


_ADDING = ("all_reduce", "reduce_scatter_tensor", "reduce")
_SKIPPED: dict[str, Callable[..., Any]] = {
    "all_reduce": lambda *_, **__: None,
    "broadcast": lambda *_, **__: None,
    "reduce": lambda *_, **__: None,
    "all_gather": _own_everywhere,
    "all_gather_into_tensor": _own_everywhere,
    "reduce_scatter_tensor": _own_part,
    "all_to_all": _unexchanged,
    "all_to_all_single": _unexchanged,
}
"""What is left of each collective if it is not made: every rank goes on with its own values."""
