"""Where a rank keeps copies of outputs of timed calls, until they are asked for."""

from __future__ import annotations

import mmap
import random
from collections.abc import Hashable
from functools import partial
from typing import Any

import torch

from harness.platforms import LEAST_KEPT
from harness.ring import clone, map_tensors, tensors

_random = random.SystemRandom()


class Shelf:
    """Room for copies, taken from the allocator at once: a copy that took a block which the candidate has just freed
    would make its next call pay for another.

    There is room for `LEAST_KEPT` as large as the first one. When it is used up, a copy takes the place of any of those
    that are there, with such a chance that of all that have been offered each is as likely to be there in the end: a
    candidate that counted until the room is used up would know that nobody looks from then on. One that does not stay
    is made all the same: it takes its time, and nobody sees from the copying what is kept."""

    _BYTES = 256 << 20

    def __init__(self) -> None:
        self.copies: dict[Any, Any] = {}
        self._room: torch.Tensor | None = None
        self._spare = 0
        """Bytes at the end of the room for what does not stay."""
        self._places: dict[Hashable, range] = {}
        """Bytes of the room that a copy may use; those that did not fit are elsewhere."""
        self._used = self._offered = 0
        self._ready = self._most = self._then = 0
        """Bytes of the room that have been written, that were used at most between two calls of `prepare`, and that
        were at the last."""

    def clear(self) -> None:
        """Forget all copies; the room stays."""
        self.copies.clear()
        self._places.clear()
        self._used = self._offered = 0

    def offer(self, key: Hashable, value: Any) -> None:
        """Copy every tensor of it on the current stream, if there is room or by chance, unless one of that key has
        been."""
        if key in self.copies:
            return
        self._offered += 1
        found = tensors(value)
        size = sum(map(_rounded, found))
        if self._room is None and found:
            self._spare = size
            room = max(self._BYTES, LEAST_KEPT * size) + self._spare
            self._room = torch.empty(room, dtype=torch.uint8, device=found[0].device)
            self._room[room - self._spare :].zero_()
        place = range(self._used, self._used + size)
        if self._room is None or place.stop <= len(self._room) - self._spare:
            self._used = place.stop
        elif len(self.copies) < LEAST_KEPT:
            place = range(0)
        else:
            drawn = _random.randrange(self._offered)
            if drawn >= len(self.copies):
                self._copied(value, found, range(len(self._room) - self._spare, len(self._room)))
                return
            former = list(self.copies)[drawn]
            del self.copies[former]
            place = self._places.pop(former)
        self._places[key] = place
        self.copies[key] = self._copied(value, found, place)

    def _copied(self, value: Any, found: list[torch.Tensor], place: range) -> Any:
        """A copy in that place, or elsewhere if it does not fit."""
        if len(place) < sum(map(_rounded, found)):
            return clone(value, contiguous=True)
        return map_tensors(value, partial(self._put, iter(_slices(found, place.start))))

    def prepare(self) -> None:
        """Write into as much more of the room as was used between two calls of this, so that the next copies find
        pages there: the kernel hands them out on the first write, which takes longer than the copy itself."""
        if self._room is not None and self._room.device.type == "cpu":
            self._ready = max(self._ready, self._used)
            self._most, self._then = max(self._most, self._used - self._then), self._used
            ahead = self._room[self._ready : self._used + self._most]
            ahead[:: mmap.PAGESIZE] = 0
            self._ready += len(ahead)

    def _put(self, places: Any, tensor: torch.Tensor) -> torch.Tensor:
        assert self._room is not None
        return self._room[next(places)].view(tensor.dtype).view(tensor.shape).copy_(tensor)


def _slices(found: list[torch.Tensor], at: int) -> list[slice]:
    """One for each tensor, one after the other from `at` on."""
    slices = []
    for tensor in found:
        slices.append(slice(at, at + tensor.nbytes))
        at += _rounded(tensor)
    return slices


def _rounded(tensor: torch.Tensor) -> int:
    """Bytes that it takes of the room."""
    return -(-tensor.nbytes // 256) * 256
