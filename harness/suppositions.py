"""Mistakes that can be tried out on the reference itself: an argument left out, scaled, of the wrong rank or the wrong
call. If what is right under such a supposition is what the candidate returned, that is its mistake.

For the reference ranks; every rank makes the same list and tries the same one at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist

from harness import ring
from harness.altered import Call, altered

_MOST_CALLS = 8
"""Collectives of the reference that are altered."""


@dataclass(frozen=True)
class Supposition:
    """`kind`: `times` (an argument times `value`), `ones`, `unmask` (all ones, of integers), `set` (a plain argument is
    `value`), `mine` (all ranks have this rank's argument; position None: all arguments), `skip` and `factor` (the
    reference's collective `position` is left out, or its result multiplied by `value`), `earlier` (inputs of slot
    `value`: an argument on all ranks, or, position None, everything on all other ranks)."""

    kind: str
    position: int | None
    value: Any
    cause: str
    text: str

    def facts(self) -> dict[str, Any]:
        return asdict(self)


def listed(
    arguments: tuple[Any, ...], names: list[str], world_size: int, slots: list[int], calls: list[Call]
) -> list[Supposition]:
    """All that fit these arguments, the likelier first. `slots`: those that hold other calls' inputs; `calls`: the
    collectives of the reference."""
    plain, scaled, mine, old = [], [], [], []
    for position, (argument, name) in enumerate(zip(arguments, names, strict=False)):
        plain += list(_of_plain(position, argument, name, world_size))
        if _numbers(argument):
            scaled += list(_of_tensors(position, argument, name, world_size))
        if _mask(argument):
            text = f"as if {name} were not applied (all ones)"
            plain.append(Supposition("unmask", position, None, "mask left out", text))
        if _numbers(argument):
            again = f"as if {name} were that of an earlier call: not published in every call, kept, or read too early"
            old += [Supposition("earlier", position, slot, "stale", again) for slot in slots]
        if world_size > 1 and _numbers(argument):
            mine.append(Supposition(
                "mine", position, None, "own data",
                f"as if every rank had this rank's {name}: its own is used where another rank's, or all of them, count",
            ))  # fmt: skip
    everything = "as if all ranks had this rank's inputs: what goes over ranks is computed from this one's alone"
    whole = [Supposition("mine", None, None, "own data only", everything)] if world_size > 1 else []
    others = "as if the other ranks had their inputs of an earlier call: not published in every call, or read too early"
    peers = [Supposition("earlier", None, slot, "stale", others) for slot in slots]
    steps = [it for number, call in enumerate(calls[:_MOST_CALLS]) if call.numbers
             for it in _of_call(number, call, world_size)]  # fmt: skip
    return [*plain, *steps, *peers, *old, *whole, *mine, *scaled]


def _numbers(argument: Any) -> bool:
    """Whether it has tensors of numbers: what other integers would mean (sizes, places) nobody knows."""
    return any(t.is_floating_point() or t.is_complex() for t in ring.tensors(argument))


def _mask(argument: Any) -> bool:
    """Whether it is a tensor of zeros and ones that are no numbers."""
    if not isinstance(argument, torch.Tensor) or argument.is_floating_point() or argument.is_complex():
        return False
    return argument.numel() > 0 and bool(((argument == 0) | (argument == 1)).all())


def _of_call(number: int, call: Call, world_size: int) -> Iterator[Supposition]:
    step = f"the reference's `{call.line[:100]}`"
    yield Supposition(
        "skip", number, None, "step left out",
        f"as if {step} were left out: each rank goes on with its own values",
    )  # fmt: skip
    if call.adds and world_size > 1:
        yield Supposition(
            "factor", number, world_size, "scaled",
            f"as if the result of {step} were {world_size} times as large, the number of ranks: summed, not averaged",
        )  # fmt: skip
        yield Supposition(
            "factor", number, 1 / world_size, "scaled",
            f"as if the result of {step} were divided by the number of ranks: averaged, not summed",
        )  # fmt: skip


def _of_plain(position: int, value: Any, name: str, world_size: int) -> Iterator[Supposition]:
    def set_to(other: Any, remark: str = "") -> Supposition:
        said = f"as if {name} were {other!r} and not {value!r}{remark}"
        return Supposition("set", position, other, "wrong constant", said)

    if isinstance(value, bool):
        yield set_to(not value)
    elif isinstance(value, float) and value:
        yield set_to(0.0, ": it is left out")
        if value != 1:
            yield set_to(1.0, ": it is not applied")
        yield set_to(value * world_size, ": times the number of ranks")
        yield set_to(value / world_size, ": divided by the number of ranks")
        yield from (set_to(other) for other in (-value, 2 * value, value / 2, value * value, math.sqrt(abs(value))))


def _of_tensors(position: int, argument: Any, name: str, world_size: int) -> Iterator[Supposition]:
    def times(by: float, text: str, cause: str = "argument scaled") -> Supposition:
        return Supposition("times", position, by, cause, f"as if {name} were {text}")

    yield times(0.0, "left out (zero)", "argument left out")
    yield times(world_size, f"{world_size} times as large, the number of ranks: summed where the mean is right")
    yield times(1 / world_size, "divided by the number of ranks: averaged where the sum is right")
    yield Supposition("ones", position, None, "argument left out", f"as if {name} were not applied (all ones)")
    yield times(-1.0, "of the other sign")
    yield times(2.0, "taken twice")
    yield times(0.5, "halved")
    last = next((t.shape[-1] for t in ring.tensors(argument) if t.dim()), 1)
    if last > 1:
        root = math.sqrt(last)
        yield times(root, f"multiplied with sqrt({last}): a scale is left out")
        yield times(1 / root, f"divided by sqrt({last}): a scale is applied twice")


def tried(
    it: Supposition,
    arguments: tuple[Any, ...],
    earlier: Callable[[int], tuple[Any, ...]],
    evaluate: Callable[[tuple[Any, ...]], Any],
) -> Any:
    """What would be right on this rank under the supposition; None if the reference refuses it. `earlier(slot)`: this
    rank's inputs there. Collective."""
    # Where sizes differ, ranks that work on each other's inputs would miss each other.
    if (it.kind == "mine" and not _alike(_shapes(arguments), across=True)) or (
        it.kind == "earlier" and not _alike([_shapes(arguments), _shapes(earlier(it.value))], across=False)
    ):
        return None
    try:
        if it.kind in ("skip", "factor"):
            assert it.position is not None
            with altered(it.position, it.value):
                return evaluate(arguments)
        if it.kind in ("times", "ones", "unmask", "set") or (it.kind == "earlier" and it.position is not None):
            return evaluate(_changed(it, arguments, earlier))
        rank, found = dist.get_rank(), None
        for k in range(dist.get_world_size()):
            if it.kind == "mine":
                value = evaluate(_from(k, arguments, it.position))
            else:
                value = evaluate(arguments if k == rank else (*earlier(it.value), *arguments[len(earlier(it.value)) :]))
            found = value if k == rank else found
        return found
    except Exception:  # the reference may fail in any way on what it was not made for
        return None


def _shapes(arguments: tuple[Any, ...]) -> list[tuple[int, ...]]:
    return [tuple(t.shape) for argument in arguments for t in ring.tensors(argument)]


def _alike(shapes: list[Any], *, across: bool) -> bool:
    """Whether shapes are the same on all ranks (`across`), or on every rank its two lists of them. Collective."""
    everybody: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, shapes if across else shapes[0] == shapes[1])
    return all(each == everybody[0] for each in everybody) if across else all(everybody)


def _changed(it: Supposition, arguments: tuple[Any, ...], earlier: Callable[[int], tuple[Any, ...]]) -> tuple[Any, ...]:
    def function(tensor: torch.Tensor) -> torch.Tensor:
        if it.kind == "unmask":
            return torch.ones_like(tensor)
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return tensor
        return torch.ones_like(tensor) if it.kind == "ones" else tensor * it.value

    changed = list(arguments)
    assert it.position is not None
    if it.kind == "earlier":
        changed[it.position] = earlier(it.value)[it.position]
    else:
        given = changed[it.position]
        changed[it.position] = it.value if it.kind == "set" else ring.map_tensors(given, function)
    return tuple(changed)


def _from(k: int, arguments: tuple[Any, ...], position: int | None) -> tuple[Any, ...]:
    """These arguments, with the tensors of rank k: all, or those of one argument. Where shapes differ, one's own."""
    changed = list(arguments)
    for i, argument in enumerate(arguments):
        if position in (None, i) and _numbers(argument):
            box = [[t.cpu() for t in ring.tensors(argument)]]
            dist.broadcast_object_list(box, src=k)
            theirs = iter(box[0])

            def replaced(own: torch.Tensor, theirs: Iterator[torch.Tensor] = theirs) -> torch.Tensor:
                other = next(theirs)
                return other.to(own.device) if other.shape == own.shape else own

            changed[i] = ring.map_tensors(argument, replaced)
    return tuple(changed)
