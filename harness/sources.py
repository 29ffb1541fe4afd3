"""What wrong values may come from, gathered from all reference ranks: everybody's inputs and right outputs, and what
would be right without some ranks' numbers. Collective: every reference rank calls these at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from harness import ring

Evaluate = Callable[[tuple[Any, ...]], Any]
"""What is right for these arguments, in float64 where numbers are computed."""

_MOST_BYTES = 64 << 20
"""Of one rank's inputs, and of its outputs, up to which they are sent to all and evaluated again."""


@dataclass
class Sources:
    """What wrong values of one output tensor may come from. Tensors have the output's shape unless said otherwise;
    complex ones are pairs of real ones, as in `Judged`."""

    rank: int
    world_size: int
    inputs: list[list[tuple[str, torch.Tensor]]] = field(default_factory=list)
    """By rank: names and tensors of its arguments, any shape."""
    rights: list[torch.Tensor | None] = field(default_factory=list)
    """By rank: what is right there."""
    others: list[tuple[str, torch.Tensor]] = field(default_factory=list)
    """Names of other calls, and what was right for them."""
    siblings: list[tuple[int, torch.Tensor]] = field(default_factory=list)
    """Other tensors of the output here, with their numbers: what is right for them."""
    sizes: dict[int, str] = field(default_factory=dict)
    """Sizes of the inputs' axes, and whose they are."""
    parts: list[torch.Tensor] = field(default_factory=list)
    """By rank: what is right here if all other ranks' numbers are zero; empty if not known."""
    without: list[torch.Tensor] = field(default_factory=list)
    """By rank: what is right here if that rank's numbers are zero; empty if not known."""

    additive: bool = False
    """Whether what is right is the sum of what the ranks contribute; `weigh` finds out."""

    def weigh(self, truth: torch.Tensor) -> None:
        """Find out whether the parts add up to what is right."""
        if self.parts and all(bool(part.isfinite().all()) for part in self.parts):
            rest = torch.stack(self.parts).sum(0) - truth
            self.additive = float(rest.norm()) <= 1e-5 * float(truth.norm())


def gather(
    arguments: tuple[Any, ...],
    names: list[str],
    right: Any,
    others: list[tuple[str, Any]],
    evaluate: Evaluate | None,
    variable: Callable[[int], bool],
) -> list[Sources]:
    """One for each tensor of the output `right`, in order. `others`: names of other calls and what was right for them;
    `evaluate`: None if there is no time for what would be right without some ranks;
    `variable`: whether the numbers of an argument may be replaced by zeros."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    outputs = _real(right)
    own = [(name, t) for name, argument in zip(names, arguments, strict=False) for t in _real(argument)]
    small = sum(t.nbytes for _, t in own) <= _MOST_BYTES and sum(t.nbytes for t in outputs) <= _MOST_BYTES
    device = outputs[0].device if outputs else torch.device("cpu")
    everybody: list[Any] = [None] * world_size
    sent = ([(name, _sendable(t)) for name, t in own], [_sendable(t) for t in outputs]) if small else None
    dist.all_gather_object(everybody, sent)
    if any(each is None for each in everybody):
        return [Sources(rank, world_size, others=old) for old in _aligned(others, len(outputs))]
    parts, without = [], []
    if evaluate is not None:
        parts = list(_evaluations(arguments, evaluate, variable, lambda k: k != rank, world_size))
        without = list(_evaluations(arguments, evaluate, variable, lambda k: k == rank, world_size))
    sizes = {n: f"the size of axis {axis} of {name}" for name, t in own for axis, n in enumerate(t.shape) if n > 2}
    found = []
    for i, old in enumerate(_aligned(others, len(outputs))):
        rights = [each[1][i].to(device) if i < len(each[1]) else None for each in everybody]
        inputs = [[(name, t.to(device)) for name, t in each[0]] for each in everybody]
        siblings = [(j, t) for j, t in enumerate(outputs) if j != i and t.shape == outputs[i].shape]
        sources = Sources(rank, world_size, inputs, rights, old, siblings, sizes)
        for into, values in ((sources.parts, parts), (sources.without, without)):
            if all(i < len(value) and value[i].shape == outputs[i].shape for value in values):
                into += [value[i] for value in values]
        found.append(sources)
    return found


def _evaluations(
    arguments: tuple[Any, ...],
    evaluate: Evaluate,
    variable: Callable[[int], bool],
    silent: Callable[[int], bool],
    world_size: int,
) -> Iterator[list[torch.Tensor]]:
    """For each rank k what is right if this rank's numbers are zero where `silent(k)`."""
    for k in range(world_size):
        value = evaluate(_replaced(arguments, variable, torch.zeros_like) if silent(k) else arguments)
        yield [t.double() if t.is_floating_point() else t for t in _real(value)]


def vary(arguments: tuple[Any, ...], variable: Callable[[int], bool]) -> tuple[Any, ...]:
    """The same with all numbers that may change in other places: of the same distribution, and nearly all different."""

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.numel() < 2:
            return tensor * 1.25
        return tensor.reshape(-1).roll(tensor.numel() // 2 + 1).reshape(tensor.shape)

    return _replaced(arguments, variable, moved)


def _replaced(
    arguments: tuple[Any, ...], variable: Callable[[int], bool], function: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[Any, ...]:
    def replaced(tensor: torch.Tensor) -> torch.Tensor:
        return function(tensor) if tensor.is_floating_point() or tensor.is_complex() else tensor

    return tuple(ring.map_tensors(a, replaced) if variable(i) else a for i, a in enumerate(arguments))


def _real(value: Any) -> list[torch.Tensor]:
    """All tensors, complex ones as pairs of real ones."""
    return [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in ring.tensors(value)]


def _sendable(tensor: torch.Tensor) -> torch.Tensor:
    """On the host; 8-bit floats, which cannot be pickled, as wider ones of the same values."""
    narrow = tensor.is_floating_point() and tensor.element_size() == 1
    return (tensor.float() if narrow else tensor).cpu()


def _aligned(others: list[tuple[str, Any]], count: int) -> list[list[tuple[str, torch.Tensor]]]:
    """By tensor of the output."""
    flat = [(name, _real(other)) for name, other in others]
    return [[(name, tensors[i]) for name, tensors in flat if i < len(tensors)] for i in range(count)]
