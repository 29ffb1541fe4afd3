"""Inputs of repeated calls: sets that calls go round, whose contents change a little, in place, before each sample.

Both sides hold the same ring and change it by the same draw, so that the reference knows what is right for each call.
A change leaves address, shape and version counter of every tensor as they were: a result that was kept by any of them,
or by a fingerprint of a few elements, is then wrong.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from harness.platforms import LEAST_KEPT

CHANGED = 16
"""Elements of each floating-point tensor that differ from one sample to the next."""
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Bound before any candidate can replace them.
_equal, _index_copy, _clone, _copy = torch.equal, torch.Tensor.index_copy_, torch.Tensor.clone, torch.Tensor.copy_


@dataclass(frozen=True)
class Use:
    """What may happen to a problem's arguments, by position, and how it is called (see `problems.spec.Problem`)."""

    updates: Sequence[int] = ()
    scratch: Sequence[int] = ()
    changing: Sequence[int] | None = None
    gradients: bool = False
    """Whether calls run with autograd on."""

    @property
    def written(self) -> frozenset[int]:
        """Arguments that `solution` may write into: restored before it is called again."""
        return frozenset(self.updates) | frozenset(self.scratch)

    def handed(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The same for one call: a list whose items may be replaced is the call's own."""
        written = self.written
        if not written:
            return arguments
        return tuple(list(a) if i in written and isinstance(a, list) else a for i, a in enumerate(arguments))

    def copied(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The same with clones of what may be written."""
        return tuple(clone(a) if i in self.written else a for i, a in enumerate(arguments))

    def kept(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Those that must stay as they are."""
        return tuple(a for i, a in enumerate(arguments) if i not in self.written)

    def answer(self, output: Any, arguments: tuple[Any, ...]) -> Any:
        """What is judged after a call with these arguments: its output, and with it what it was to update."""
        return (output, tuple(arguments[i] for i in self.updates)) if self.updates else output


class Ring:
    """`slots` and `copies - 1` clones of each, in turn. Entry i has the values of slot i modulo the number of slots."""

    def __init__(self, slots: Sequence[tuple[Any, ...]], copies: int, use: Use | None = None) -> None:
        self._use = use = use or Use()
        self._entries = [*slots, *(clone(arguments) for _ in range(copies - 1) for arguments in slots)]
        self._slots = len(slots)
        self._flat = [[_bits(t) for t in tensors(entry)] for entry in self._entries]
        # Private: what inputs are compared with, and restored from.
        self._kept = [[_clone(flat) for flat in entry] for entry in self._flat[: self._slots]]
        owners = [[i for i, argument in enumerate(slot) for _ in tensors(argument)] for slot in slots]
        self._written = [[owner in use.written for owner in slot] for slot in owners]
        """Of a slot's tensors, whether calls may write into them."""
        self._changing = [
            (kept, [entry[k] for entry in self._flat[i :: self._slots]], self._written[i][k])
            for i, slot in enumerate(slots)
            for k, (tensor, kept) in enumerate(zip(tensors(slot), self._kept[i], strict=True))
            if (_real(tensor) if use.changing is None else owners[i][k] in use.changing)
        ]
        """What a slot's tensor was given as, that tensor in the slot and its clones, whether calls write into it."""
        self._steps: list[list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, bool]]] = []
        """For each sample (tensor, what it was given as, positions, values, whether calls write into it)."""
        self.sample = -1
        """Whose contents these are; -1 for what was given."""

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, i: int) -> tuple[Any, ...]:
        return self._use.handed(self._entries[i % len(self._entries)])

    def draw(self, seed: int, samples: int) -> None:
        """Restore all contents and prepare `samples` changes of them from `seed`, the same on every rank and side."""
        self.restore()
        self._steps = [[] for _ in range(samples)]
        if not self._changing:
            return
        generator = torch.Generator().manual_seed(_hashed(seed))
        copies, device = len(self._entries) // self._slots, self._changing[0][0].device
        drawn = torch.randint(1 << 62, (len(self._changing), 2, samples, copies, CHANGED), generator=generator)
        turn = (torch.arange(samples, device=device) % 2)[:, None, None]
        for (kept, flats, written), (at, source) in zip(self._changing, drawn.to(device), strict=True):
            if len(kept) < 2:
                continue
            # One position in each of `count` stretches, even and odd ones in alternation: what a change writes and what
            # it restores of the former never overlap.
            count = min(CHANGED, len(kept) // 2)
            width = len(kept) // count
            set_at = torch.arange(count, device=device) * width + 2 * (at[..., :count] % (width // 2)) + turn
            new = kept[source[..., :count] % len(kept)]
            restored_at = set_at.roll(1, 0)
            restored_at[0] = set_at[0]
            old = kept[restored_at]
            old[0] = new[0]
            positions, values = torch.cat([restored_at, set_at], 2), torch.cat([old, new], 2)
            for step, places, contents in zip(self._steps, positions.unbind(), values.unbind(), strict=True):
                for flat, place, content in zip(flats, places.unbind(), contents.unbind(), strict=True):
                    step.append((flat, kept, place, content, written))

    def change(self, sample: int) -> None:
        """Make the contents those of a sample; samples come in ascending order."""
        if sample >= 0 and self._use.written:
            self._undo_writes()
            if self.sample >= 0:
                self._apply(written=True)
        while self.sample < sample:
            self.sample += 1
            self._apply()

    def _apply(self, *, written: bool = False) -> None:
        """What the present sample has other than what was given; `written`: only where calls write."""
        for flat, _, places, contents, its in self._steps[self.sample]:
            if its or not written:
                _index_copy(flat, 0, places, contents)

    def restore(self) -> None:
        """Undo the changes, and what calls were allowed to write; what else has been written stays."""
        if self.sample >= 0:
            for flat, kept, places, _, _ in self._steps[self.sample]:
                _index_copy(flat, 0, places, kept[places])
        self._undo_writes()
        self.sample = -1

    def _undo_writes(self) -> None:
        for flat, kept, written in self._all() if self._use.written else ():
            if written:
                _copy(flat, kept)

    def _all(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, bool]]:
        """(tensor, what it was given as, whether calls may write into it) of all entries."""
        for i, entry in enumerate(self._flat):
            slot = i % self._slots
            yield from zip(entry, self._kept[slot], self._written[slot], strict=True)

    def intact(self) -> bool:
        """Whether nothing but `change`, and calls where they may, has written into any input. Restores."""
        changed = self._steps[self.sample] if self.sample >= 0 else []
        as_changed = all(_equal(flat[places], new) for flat, _, places, new, written in changed if not written)
        self.restore()
        return as_changed and all(_equal(flat, kept) for flat, kept, written in self._all() if not written)


class Shelf:
    """Room for copies of outputs, taken from the allocator at once: a copy that took a block which the candidate has
    just freed would make its next call pay for another. There is room for the first `LEAST_KEPT`, however large, and
    after the first that is not kept none is: ranks whose outputs differ in size keep the same ones."""

    _BYTES = 256 << 20

    def __init__(self) -> None:
        self._room: torch.Tensor | None = None
        self._used = self._copies = 0
        self._full = False

    def clear(self) -> None:
        """Forget all copies; the room stays."""
        self._used = self._copies = 0
        self._full = False

    def copy(self, value: Any) -> Any:
        """The same with every tensor copied, on the current stream; None if there is no room left."""
        found = tensors(value)
        size = sum(map(_rounded, found))
        if self._room is None and found:
            self._room = torch.empty(max(self._BYTES, LEAST_KEPT * size), dtype=torch.uint8, device=found[0].device)
        fits = self._room is None or self._used + size <= len(self._room)
        self._full |= not fits and self._copies >= LEAST_KEPT
        if self._full:
            return None
        self._copies += 1
        return map_tensors(value, self._put) if fits else clone(value, contiguous=True)

    def _put(self, tensor: torch.Tensor) -> torch.Tensor:
        assert self._room is not None
        at = self._used
        self._used += _rounded(tensor)
        return self._room[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)


def _rounded(tensor: torch.Tensor) -> int:
    """Bytes that it takes on a shelf."""
    return -(-tensor.nbytes // 256) * 256


def tensors(value: Any) -> list[torch.Tensor]:
    """Every dense tensor in nested tuples, lists and dicts, in order: of a linear layer weight and bias, of a sparse
    tensor indices and values."""
    if isinstance(value, torch.nn.Linear):
        value = [value.weight, value.bias]
    if isinstance(value, torch.Tensor):
        if value.layout is torch.sparse_coo:
            return [value._indices(), value._values()]
        return [value.detach() if value.requires_grad else value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for item in value for t in tensors(item)] if isinstance(value, (tuple, list)) else []


def clone(value: Any, *, contiguous: bool = False) -> Any:
    """The same with every tensor cloned."""
    return map_tensors(value, partial(_clone, memory_format=torch.contiguous_format) if contiguous else _clone)


def map_tensors(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same with every dense tensor replaced by the function's."""
    if isinstance(value, torch.nn.Linear):
        return linear(function(value.weight.detach()), None if value.bias is None else function(value.bias.detach()))
    if isinstance(value, torch.Tensor):
        if value.layout is torch.sparse_coo:
            return sparse(function(value._indices()), function(value._values()), value.shape)
        return function(value.detach() if value.requires_grad else value)
    if isinstance(value, (tuple, list)):
        items = [map_tensors(item, function) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: map_tensors(item, function) for key, item in value.items()}
    return value


def linear(weight: torch.Tensor, bias: torch.Tensor | None) -> torch.nn.Linear:
    """A layer with these as its parameters, in their own memory."""
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = torch.nn.Parameter(weight)
    if bias is not None:
        layer.bias = torch.nn.Parameter(bias)
    return layer


def sparse(indices: torch.Tensor, values: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """A coalesced COO tensor of these, in their own memory."""
    return torch.sparse_coo_tensor(indices, values, tuple(shape), is_coalesced=True, check_invariants=False)


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """Another tensor on the same memory with a version counter of its own: writing into it leaves the counter of
    `tensor` as it is."""
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
        tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride()
    )


def overwrite(old: Any, new: Any) -> Any:
    """`new` in the memory of `old`, written by aliases; `new` itself if shapes differ."""
    into, values = tensors(old), tensors(new)
    if [(t.shape, t.dtype) for t in into] != [(t.shape, t.dtype) for t in values]:
        return new
    for target, source in zip(into, values, strict=True):
        alias(target).copy_(source)
    targets = iter(into)
    return map_tensors(new, lambda source: next(targets))


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of any layout hold the same elements, NaN equal to itself."""
    if a.shape != b.shape or a.dtype != b.dtype or a.layout is not torch.strided:
        return False
    return _equal(_bits(a.contiguous()), _bits(b.contiguous()))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """All elements as integers in one dimension, on the same memory: bits are moved and compared, never values."""
    flat = alias(tensor).reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    return flat.view(_INTEGERS[flat.element_size()]) if flat.dtype is not torch.bool else flat.view(torch.int8)


def _real(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _hashed(seed: int) -> int:
    return int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=7).digest(), "little")
