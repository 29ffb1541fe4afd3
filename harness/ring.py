"""Inputs of repeated calls: sets that calls go round, whose contents change, in place, before each sample.

Both sides hold the same ring and change it by the same draw, so that the reference knows what is right for each call.
A change leaves address, shape and version counter of every tensor as they were: a result that was kept by any of them,
or by a fingerprint, is then wrong. It is of all elements before a sample, or who finds the few that have changed could
work on those alone; of few where a fingerprint is to be found out. And where the sets fit into each other's
memory, each comes in the place of any other.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch

CHANGED = 16
"""Elements of a tensor that differ from what was given where few do."""
_RUN = 8
"""A run that is replaced is one part in so many; tensors of fewer elements have none."""
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Bound before any candidate can replace them.
_equal, _index_copy, _clone, _copy_all = torch.equal, torch.Tensor.index_copy_, torch.Tensor.clone, torch._foreach_copy_
_split, _narrow = torch.split_with_sizes, torch.narrow
_Linear, _Tensor = torch.nn.Linear, torch.Tensor


@dataclass(frozen=True)
class Use:
    """What may happen to a problem's arguments, by position, and how it is called (see `problems.spec.Problem`)."""

    updates: Sequence[int] = ()
    scratch: Sequence[int] = ()
    changing: Sequence[int] | None = None
    few: bool = False
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


Exchanging = Literal["never", "eager", "always"]
"""Whether entries may have the contents of other slots: where these do not fit, never; where other arguments than
tensors differ, in calls that are made anew each time; where all slots are `alike`, always."""


class Ring:
    """`slots` and `copies - 1` clones of each, in turn. Entry i has the values of slot i modulo the number of slots."""

    def __init__(
        self, slots: Sequence[tuple[Any, ...]], copies: int, use: Use | None = None, exchange: Exchanging = "never"
    ) -> None:
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
            [
                len(kept) > 1 and (_real(tensor) if use.changing is None else owner in use.changing)
                for tensor, kept, owner in zip(tensors(slot), self._kept[i], owners[i], strict=True)
            ]
            for i, slot in enumerate(slots)
        ]
        """Of a slot's tensors, whether `change` is for them."""
        self._marks = [
            [_mark(kept) if its else 0 for kept, its in zip(keeps, changing, strict=True)]
            for keeps, changing in zip(self._kept, self._changing, strict=True)
        ]
        self._held = [-1] * len(self._entries)
        """The sample whose contents each entry has; -1 for what was given."""
        self._made_of = [i % self._slots for i in range(len(self._entries))]
        """The slot of which these are made."""
        self._exchange: Exchanging = exchange if self._slots > 1 else "never"
        self._given = list(slots)
        self._seed, self._few, self._exchanging = 0, False, False
        self._next: _Change | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, i: int) -> tuple[Any, ...]:
        return self._use.handed(self._entries[i % len(self._entries)])

    def draw(self, seed: int, *, few: bool = False, captured: bool = False) -> None:
        """Restore all contents; from now on `change` follows from `seed`, the same on every rank and side. `few`: only
        so many elements of a tensor change as no fingerprint of some of them shows, as always where a problem wants it
        so; and nothing else. `captured`: calls are in a graph, which has the values of arguments that are no
        tensors."""
        self.restore()
        self._seed, self._few = seed, few or self._use.few
        self._exchanging = not few and (self._exchange == "always" or (self._exchange == "eager" and not captured))

    def prepare(self, sample: int, entries: Iterable[int]) -> None:
        """Work out what `change` of the same is to write, if that comes next: most of what it takes the host."""
        self._next = self._change(sample, self._of(entries))

    def change(self, sample: int, entries: Iterable[int] | None = None) -> None:
        """Make the contents of these entries, or of all, those of a sample; -1 for what was given."""
        these, ready = self._of(range(len(self)) if entries is None else entries), self._next
        self._make(ready if ready and (ready.sample, ready.entries) == (sample, these) else self._change(sample, these))

    def restore(self) -> None:
        """Undo the changes, and what calls were allowed to write; what else has been written stays."""
        self._make(self._change(-1, tuple(range(len(self)))))

    def intact(self) -> bool:
        """Whether nothing but `change`, and calls where they may, has written into any input. Restores."""
        found = all(self._as_held(i) for i in range(len(self)))
        self.restore()
        return found

    def _of(self, entries: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted({i % len(self) for i in entries}))

    def _change(self, sample: int, entries: tuple[int, ...]) -> _Change:
        """What is to be written so that these entries, as they are now, have their contents in a sample."""
        writes, slots = _Writes(), dict[int, int]()
        for i in entries:
            if self._held[i] == sample and not self._use.written:
                continue
            slots[i] = slot = self._slot(i, sample)
            others = slot != self._made_of[i]
            for k, (flat, written) in enumerate(zip(self._flat[i], self._written[slot], strict=True)):
                if self._changing[slot][k]:
                    self._fill(writes, flat, i, k, sample, slot)
                elif written or others:
                    writes.add(flat, self._kept[slot][k])
        return _Change(sample, entries, writes, slots)

    def _make(self, change: _Change) -> None:
        """Write it."""
        self._next = None
        for i, slot in change.slots.items():
            if slot != self._made_of[i]:
                self._entries[i] = _with_values(self._entries[i], self._given[slot])
            self._held[i], self._made_of[i] = change.sample, slot
        change.writes.make()

    def _slot(self, i: int, sample: int) -> int:
        """Of which slot an entry's contents are made in a sample. What a problem does not let us change within a tensor
        (indices, what only makes sense together) changes so all the same."""
        if sample < 0 or not self._exchanging:
            return i % self._slots
        return (i + _hashed(f"{self._seed} {sample} {i // self._slots} slot")) % self._slots

    def _as_held(self, i: int) -> bool:
        slot, held = self._made_of[i], self._held[i]
        for k, (flat, written) in enumerate(zip(self._flat[i], self._written[slot], strict=True)):
            right = self._kept[slot][k]
            if not written and self._changing[slot][k] and held >= 0:
                right, writes = torch.empty_like(right), _Writes()
                self._fill(writes, right, i, k, held, slot)
                writes.make()
            if not written and not _equal(flat, right):
                return False
        return True

    def _fill(self, writes: _Writes, target: torch.Tensor, i: int, k: int, sample: int, slot: int) -> None:
        """Into `target`, what tensor `k` of entry `i`, made of `slot`, has in a sample: the elements that were given,
        turned round by some places, with one run of them replaced by another, or few of them replaced by others. How
        far they are turned depends on what they are: ranks with equal ones turn them alike, others differ, or the sum
        of theirs would be the former one, turned round. And turned alone, they would have the same order as ever when
        sorted."""
        kept = self._kept[slot][k]
        drawn = f"{self._seed} {sample} {i // self._slots} {k}"
        if sample < 0:
            writes.add(target, kept)
        elif self._few:
            count = min(CHANGED, len(kept) // 2)
            generator = torch.Generator().manual_seed(_hashed(drawn))
            # Without waiting for the device, which may be kept busy meanwhile.
            drawn_at = torch.randint(1 << 62, (2, count), generator=generator)
            at, source = drawn_at.to(kept.device, non_blocking=True)
            width = len(kept) // count
            writes.add(target, kept)
            writes.replace(
                target, torch.arange(count, device=kept.device) * width + at % width, kept[source % len(kept)]
            )
        else:
            for part, source in _turned(target, kept, f"{drawn} {self._marks[slot][k]}"):
                writes.add(part, source)


@dataclass(frozen=True)
class _Change:
    """Of some entries to their contents in a sample."""

    sample: int
    entries: tuple[int, ...]
    writes: _Writes
    slots: dict[int, int]
    """Of which slot each entry that is written is made then."""


class _Writes:
    """What is to be written into inputs. In one launch for all of a type: on a host that needs 10 us for each, two for
    every tensor were half of what a timed sample takes."""

    def __init__(self) -> None:
        self._copies: dict[torch.dtype, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        self._replacements: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def add(self, target: torch.Tensor, source: torch.Tensor) -> None:
        targets, sources = self._copies.setdefault(target.dtype, ([], []))
        targets.append(target)
        sources.append(source)

    def replace(self, target: torch.Tensor, at: torch.Tensor, values: torch.Tensor) -> None:
        """Elements `at` of it, when all else has been written."""
        self._replacements.append((target, at, values))

    def make(self) -> None:
        for targets, sources in self._copies.values():
            _copy_all(targets, sources)
        for target, at, values in self._replacements:
            _index_copy(target, 0, at, values)


def alike(slots: Sequence[tuple[Any, ...]], *, whole: bool = False) -> bool:
    """Whether the tensors of any of these fit into those of any other; `whole`: whether nothing but the contents of
    tensors tells them apart."""
    first, *others = (_form(slot, whole) for slot in slots)
    return all(first == other for other in others)


def _form(value: Any, whole: bool) -> Any:
    """All but the contents of tensors; without `whole`, all but values."""
    if isinstance(value, _Linear):
        return _Linear, [_form(part, whole) for part in tensors(value)]
    if isinstance(value, _Tensor):
        parts = tensors(value) if value.layout is torch.sparse_coo else []
        return value.layout, value.dtype, value.shape, [_form(part, whole) for part in parts]
    if isinstance(value, dict):
        return {key: _form(item, whole) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value), [_form(item, whole) for item in value]
    return value if whole else type(value)


def _with_values(value: Any, other: Any) -> Any:
    """With the other's values, but for tensors."""
    if isinstance(value, (_Linear, _Tensor)):
        return value
    if isinstance(value, (tuple, list)):
        items = [_with_values(item, its) for item, its in zip(value, other, strict=True)]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: _with_values(item, other[key]) for key, item in value.items()}
    return other


def tensors(value: Any) -> list[torch.Tensor]:
    """Every dense tensor in nested tuples, lists and dicts, in order: of a linear layer weight and bias, of a sparse
    tensor indices and values."""
    if isinstance(value, _Linear):
        value = [value.weight, value.bias]
    if isinstance(value, _Tensor):
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
    if isinstance(value, _Linear):
        return linear(function(value.weight.detach()), None if value.bias is None else function(value.bias.detach()))
    if isinstance(value, _Tensor):
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


def _turned(target: torch.Tensor, kept: torch.Tensor, drawn: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Parts of `target` and what each is to be: `kept`, turned round, with one run of it replaced by another."""
    count, (places, at, first) = kept.numel(), _hashes(drawn, 3)
    run = count // _RUN
    # Odd, so that no matrix of an even number of columns has its rows again.
    places = places % (count // 2) * 2 + 1
    rest = count - places
    if not run:
        return list(zip(_split(target, (rest, places)), reversed(_split(kept, (places, rest))), strict=True))
    # Split at once: a view for each costs the host as much as all of them.
    at %= max(rest, places) - run + 1
    after = max(rest, places) - run - at
    if rest >= places:
        begin, middle, end, last = _split(target, (at, run, after, places))
        of_last, of_begin, _, of_end = _split(kept, (places, at, run, after))
    else:
        last, begin, middle, end = _split(target, (rest, at, run, after))
        of_begin, _, of_end, of_last = _split(kept, (at, run, after, rest))
    other = _narrow(kept, 0, first % (count - run + 1), run)
    return [(last, of_last), (begin, of_begin), (middle, other), (end, of_end)]


def _real(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _hashed(text: str) -> int:
    return _hashes(text, 1)[0]


def _hashes(text: str, count: int) -> tuple[int, ...]:
    """So many numbers below 2^63."""
    digest = hashlib.blake2b(text.encode(), digest_size=8 * count).digest()
    return tuple(number >> 1 for number in struct.unpack(f"<{count}Q", digest))


def _mark(kept: torch.Tensor) -> int:
    """Of some of the elements: other tensors have another."""
    some = kept[:: max(1, len(kept) // 4096)].to(torch.int64).cpu()
    return int((some * torch.arange(1, 2 * len(some), 2)).sum())
