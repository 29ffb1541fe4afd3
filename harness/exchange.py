"""Tensors between processes that do not trust each other: raw bytes in a shared file, structure as JSON.

One file per rank and direction, grown as needed. Host memory on every platform: at 2 MiB a copy costs well under a
millisecond, no device handle crosses the trust boundary, and the same code serves CPU and GPU.
"""

from __future__ import annotations

import os
from io import FileIO
from pathlib import Path
from typing import Any

import torch

from harness import ring
from harness.wording import one_line
from problems.spec import Subgroups

_ALIGN = 64
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2),
        *(torch.int8, torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64, torch.complex128),
        *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    )
}
MAX_BYTES = 32 << 30
_MAX_DEPTH = 32
"""Of what is nested in a value: `wire` would take a reply that is nested much deeper for a forged one."""


class MalformedError(Exception):
    """The description does not fit the file or is not one, or the value has none."""


class Exchange:
    """The shared file. Its writer maps it, and keeps the map because page faults cost more than the copy; its reader
    reads it: a map of a file that the other side makes shorter would end the process that looks at it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._bytes: torch.Tensor | None = None
        self._pinned: torch.Tensor | None = None

    def _map(self, size: int) -> torch.Tensor:
        if self._bytes is None or self._bytes.numel() < size:
            # In a jail inputs can be read and not written.
            shared = not self._path.exists() or os.access(self._path, os.W_OK)
            self._bytes = torch.from_file(str(self._path), shared=shared, size=max(size, 1), dtype=torch.uint8)
        return self._bytes

    def write(self, value: Any) -> dict[str, Any]:
        """Copy every tensor of `value` (nested tuples, lists, dicts, plain values; in arguments also linear layers,
        sparse tensors, process groups) out; returns its description. Raises MalformedError."""
        tensors: list[torch.Tensor] = []
        tree = _describe(value, tensors)
        offset = 0
        for leaf, tensor in zip(_leaves(tree), tensors, strict=True):
            leaf["offset"] = offset
            offset += -(-tensor.numel() * tensor.element_size() // _ALIGN) * _ALIGN
        area = self._map(offset)
        for leaf, tensor in zip(_leaves(tree), tensors, strict=True):
            if not tensor.is_meta:  # it has no data; its device is already what is wrong with it
                _view(area, leaf).copy_(tensor.detach())
        return tree

    def read(self, tree: dict[str, Any], device: torch.device | str) -> Any:
        """Rebuild a value from its description, tensors as fresh copies on `device`, or on the CPU if they came from
        there. Raises MalformedError."""
        try:
            leaves = _leaves(tree)
            size = max((leaf["offset"] + _bytes(leaf) for leaf in leaves), default=0)
            if size > MAX_BYTES or any(leaf["offset"] < 0 or leaf["offset"] % _ALIGN for leaf in leaves):
                raise MalformedError("tensor outside the exchange file")
            if not leaves:
                return _rebuild(tree, {})
            # The candidate owns the file: without O_NONBLOCK a lease that it took there would hold us up for 45 s.
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with FileIO(descriptor) as file:
                places = {True: torch.device("cpu"), False: torch.device(device)}
                tensors = {id(leaf): self._fetch(file, leaf, places[leaf["device"] == "cpu"]) for leaf in leaves}
            return _rebuild(tree, tensors)
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, OSError) as error:
            raise MalformedError(f"{type(error).__name__}: {error}") from None

    def _fetch(self, file: FileIO, leaf: dict[str, Any], device: torch.device) -> torch.Tensor:
        """One tensor, on `device`."""
        size = _bytes(leaf)
        if device.type == "cpu":
            host = torch.empty(size, dtype=torch.uint8)
        else:
            if self._pinned is None or self._pinned.numel() < size:
                self._pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            host = self._pinned[:size]
        view, done = memoryview(host.numpy()), 0  # type: ignore[arg-type]
        while done < size:
            read = os.preadv(file.fileno(), [view[done:]], leaf["offset"] + done)
            if read == 0:
                raise MalformedError("the exchange file is shorter than described")
            done += read
        value = host.view(_DTYPES[leaf["dtype"]]).view(leaf["shape"])
        return value if device.type == "cpu" else value.to(device)


def _describe(value: Any, tensors: list[torch.Tensor], depth: int = 0) -> dict[str, Any]:
    if depth > _MAX_DEPTH:
        raise MalformedError(f"lists, tuples or dicts are nested more than {_MAX_DEPTH} deep")
    if type(value) is torch.nn.Linear:
        bias = None if value.bias is None else value.bias.detach()
        return {"kind": "linear", "items": [_describe(value.weight.detach(), tensors), _describe(bias, tensors)]}
    if isinstance(value, Subgroups):
        return {"kind": "groups", "sets": [list(ranks) for ranks in value.sets]}
    if isinstance(value, torch.Tensor) and value.layout is torch.sparse_coo:
        parts = [_describe(part, tensors) for part in (value._indices(), value._values())]
        return {"kind": "sparse", "shape": list(value.shape), "items": parts}
    if isinstance(value, torch.Tensor):
        if str(value.dtype).removeprefix("torch.") not in _DTYPES or value.layout is not torch.strided:
            return {"kind": "other", "type": f"{value.dtype} {value.layout} {value.device.type} tensor"}
        tensors.append(value)
        return {
            "kind": "tensor",
            "shape": list(value.shape),
            "dtype": str(value.dtype).removeprefix("torch."),
            "device": value.device.type,
            "offset": 0,
        }
    if isinstance(value, (tuple, list)):
        # A named tuple is a tuple: its own name would match no reference.
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {"kind": kind, "items": [_describe(item, tensors, depth + 1) for item in value]}
    if isinstance(value, dict):
        return {
            "kind": "dict",
            "keys": [str(k) for k in value],
            "items": [_describe(v, tensors, depth + 1) for v in value.values()],
        }
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"kind": "plain", "value": value}
    return {"kind": "other", "type": type(value).__name__}


_HOLDERS = ("tuple", "list", "dict", "linear", "sparse")


def _leaves(tree: dict[str, Any]) -> list[dict[str, Any]]:
    if tree["kind"] == "tensor":
        return [tree]
    return [leaf for item in tree["items"] for leaf in _leaves(item)] if tree["kind"] in _HOLDERS else []


def _bytes(leaf: dict[str, Any]) -> int:
    if 0 in leaf["shape"]:
        return 0
    count = 1
    for size in leaf["shape"]:
        if size < 0:
            raise MalformedError("negative size")
        count *= size
        if count > MAX_BYTES:
            raise MalformedError("tensor larger than can be")
    return count * _DTYPES[leaf["dtype"]].itemsize


def _view(area: torch.Tensor, leaf: dict[str, Any]) -> torch.Tensor:
    return area[leaf["offset"] : leaf["offset"] + _bytes(leaf)].view(_DTYPES[leaf["dtype"]]).view(leaf["shape"])


def _rebuild(tree: dict[str, Any], tensors: dict[int, torch.Tensor]) -> Any:
    kind = tree["kind"]
    if kind == "tensor":
        return tensors[id(tree)]
    if kind in ("tuple", "list"):
        items = [_rebuild(item, tensors) for item in tree["items"]]
        return tuple(items) if kind == "tuple" else items
    if kind == "dict":
        return {k: _rebuild(v, tensors) for k, v in zip(tree["keys"], tree["items"], strict=True)}
    if kind == "plain":
        return tree["value"]
    if kind == "groups":
        return Subgroups(tuple(tuple(ranks) for ranks in tree["sets"]))
    if kind in ("linear", "sparse"):
        first, second = (_rebuild(item, tensors) for item in tree["items"])
        return ring.linear(first, second) if kind == "linear" else ring.sparse(first, second, tree["shape"])
    return Other(tree["type"])


class Other:
    """Stands for a value that cannot cross: only its type's name is known."""

    def __init__(self, type_name: str) -> None:
        self.type_name = type_name


def structure_error(expected: Any, tree: dict[str, Any], path: str = "out") -> str | None:
    """Why a candidate's output, by its description, does not have the structure, shapes, dtypes and device kind of
    the reference's output; None if it does. Reads no data."""
    if isinstance(expected, torch.Tensor):
        if tree["kind"] != "tensor":
            return f"{path} must be a tensor, not {_kind_name(tree)}"
        if list(expected.shape) != tree["shape"]:
            return f"{path} has shape {tuple(tree['shape'])}; it must be {tuple(expected.shape)}"
        dtype = str(expected.dtype).removeprefix("torch.")
        if dtype != tree["dtype"]:
            return f"{path} has dtype {tree['dtype']}; it must be {dtype}"
        if expected.device.type != tree["device"]:
            return f"{path} is on {tree['device']}; it must be on {expected.device.type}"
        return None
    if isinstance(expected, (tuple, list)):
        if tree["kind"] not in ("tuple", "list"):
            return f"{path} must be a {type(expected).__name__} of {len(expected)}, not {_kind_name(tree)}"
        if len(tree["items"]) != len(expected):
            return f"{path} has {len(tree['items'])} items; it must have {len(expected)}"
        found = (
            structure_error(e, t, f"{path}[{i}]") for i, (e, t) in enumerate(zip(expected, tree["items"], strict=True))
        )
        return next((error for error in found if error), None)
    if isinstance(expected, dict):
        if (
            tree["kind"] != "dict"
            or sorted(tree["keys"]) != sorted(map(str, expected))
            or len(tree["items"]) != len(tree["keys"])
        ):
            return f"{path} must be a dict with the keys {', '.join(map(str, expected))}"
        items = dict(zip(tree["keys"], tree["items"], strict=True))
        found = (structure_error(v, items[str(k)], f"{path}[{k!r}]") for k, v in expected.items())
        return next((error for error in found if error), None)
    # How far a number is off is for the comparison; what is none is right or wrong.
    alike = (int, float) if isinstance(expected, (int, float)) else type(expected)
    if tree["kind"] != "plain" or not isinstance(tree["value"], alike):
        return f"{path} must be {expected!r}, not {_kind_name(tree)}"
    if isinstance(expected, str) and tree["value"] != expected:
        return f"{path} is {one_line(repr(tree['value']))}; it must be {expected!r}"
    return None


def _kind_name(tree: dict[str, Any]) -> str:
    if tree["kind"] == "other":
        return f"an object of type {tree['type']}"
    if tree["kind"] == "plain":
        return "None" if tree["value"] is None else f"a {type(tree['value']).__name__}"
    return f"a {tree['kind']}"
