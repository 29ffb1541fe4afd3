"""The trusted role: draws secret inputs, knows what is right, judges outputs, times the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from harness import guard, peaks, ring
from harness.errors import HarnessError
from harness.exchange import MalformedError, structure_error
from harness.numerics import compare, likeness
from harness.rank import Handler, Rank
from harness.types import to_json
from problems import catalogue
from problems.spec import Case, Problem, RankContext

Right = tuple[Any, Any, Any]
"""What is right: the reference's answer in the run's dtype, on the same inputs in float64 (for data movement the same
again), both in the problem's canonical form; and which of its elements are not judged (None: all are)."""


@dataclass(frozen=True)
class _Known:
    """What is known of one set of inputs."""

    arguments: tuple[Any, ...]
    right: Right
    shared: bool
    """Whether the reference's output lies in an input's memory."""


@dataclass
class _Slot:
    arguments: tuple[Any, ...]
    known: _Known | None = None
    """Once it has been asked for."""
    former: _Slot | None = None
    """What the slot held before its inputs were overwritten in place."""


class ReferenceRank:
    def __init__(self, state: Rank) -> None:
        self._state = state
        self._problem: Problem | None = None
        self._case = Case("", {})
        self._dtype = torch.float32
        self._slots: dict[int, _Slot] = {}
        self._last: Any = None
        self._communicators = 1
        self._drawn: tuple[int, int] | None = None
        """Seed and samples that the ring has been drawn from last."""
        self._shelf = ring.Shelf()
        self._outputs: list[Any] = []
        """Of the last check, those that were wrong."""
        self.handlers: dict[str, Handler] = {
            "connect": self._connect,
            "attach": state.attach,
            "setup": self._setup,
            "inputs": self._inputs,
            "rotate": self._rotate,
            "answer": self._answer,
            "check": self._check,
            "explain": self._explain,
            "time": self._time,
            "measure": self._measure,
            "probe": state.probe,
            "calibrate": self._calibrate,
        }

    def _connect(self, message: dict[str, Any]) -> dict[str, Any]:
        def then() -> None:
            self._communicators = self._state.platform.communicators()

        return self._state.connect(message, then)

    def _setup(self, message: dict[str, Any]) -> dict[str, Any]:
        """Choose problem, case and dtype; forget the former ones' slots."""
        self._slots.clear()
        self._problem = catalogue.load(message["problem"], message["suite"])
        self._case = Case(message["case"], message["sizes"])
        self._dtype = getattr(torch, message["dtype"])
        problem = self._problem
        self._state.use = ring.Use(problem.updates, problem.scratch, problem.changing, problem.gradients)
        if self._state.platform.name == "cuda":
            torch.cuda.empty_cache()
        return {}

    def _inputs(self, message: dict[str, Any]) -> dict[str, Any]:
        """Draw the inputs of slot `slot` from `seed` and hand them over, unless nobody wants them (`alone`)."""
        assert self._problem is not None and self._state.device is not None
        context = RankContext(
            seed=message["seed"],
            rank=self._state.rank,
            world_size=self._state.world_size,
            dtype=self._dtype,
            device=self._state.device,
        )
        # Contiguous, as they arrive on the other side, and each tensor with memory of its own.
        arguments = ring.clone(self._problem.inputs(self._case, context), contiguous=True)
        slot = _Slot(self._state.groups.materialise(arguments))
        if message["in_place"]:
            slot.former = self._slots[message["slot"]]
            slot.former.former = None
        self._slots[message["slot"]] = slot
        return {} if message.get("alone") else {"tree": self._state.exchange["inputs"].write(list(arguments))}

    def _right(self, item: dict[str, Any]) -> _Known:
        """What is right for an item. Collective, like the reference itself: every rank asks at the same time.

        An item is a slot (`slot`; with `former`, what it held before), or an entry of the ring (`seed`, `samples`,
        `sample`, `entry`; samples of a seed in ascending order)."""
        if "slot" in item:
            slot = self._slots[item["slot"]]
            if item.get("former"):
                assert slot.former is not None
                slot = slot.former
            if slot.known is None:
                slot.known = self._evaluate(slot.arguments)
            return slot.known
        inputs, drawn = self._state.ring, (item["seed"], item["samples"])
        if self._drawn != drawn or inputs.sample > item["sample"]:
            inputs.draw(*drawn)
            self._drawn = drawn
        inputs.change(item["sample"])
        return self._evaluate(inputs[item["entry"]])

    def _evaluate(self, arguments: tuple[Any, ...]) -> _Known:
        problem, use = self._problem, self._state.use
        assert problem is not None

        def answer(given: tuple[Any, ...]) -> tuple[Any, bool]:
            given = use.copied(given)
            output = problem.reference(*given)
            return use.answer(output, given), guard.shared_with(output, given)

        with torch.set_grad_enabled(self._state.use.gradients):
            expected, shared = answer(arguments)
            computed = problem.tolerance == "rounding"
            oracle = answer(_in_float64(arguments))[0] if computed else expected
            unsure = problem.unsure(oracle, *arguments) if problem.unsure else None
            right = (self._canonical(expected, arguments), self._canonical(oracle, arguments), unsure)
        self._state.platform.synchronize()
        return _Known(arguments, right, shared)

    def _canonical(self, output: Any, arguments: tuple[Any, ...]) -> Any:
        assert self._problem is not None
        return self._problem.canonical(output, *arguments) if self._problem.canonical else output

    def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Find out what is right for a slot. Reply: `off`, how far the reference is from its oracle in RMS, relative
        (0 where all is exact), `unsure`, the share of elements that are not judged, and bytes of inputs and outputs."""
        known = self._right({"slot": message["slot"]})
        expected, oracle, unsure = (ring.tensors(part) for part in known.right)
        wrong = size = 0.0
        for i, (out, true) in enumerate(zip(expected, oracle, strict=True)):
            if out.is_floating_point() or out.is_complex():
                wide = torch.complex128 if out.is_complex() else torch.float64
                difference, true = out.to(wide) - true.to(wide), true.to(wide)
                sure = difference.isfinite() & (~unsure[i] if len(unsure) == len(expected) else True)
                wrong += float(difference[sure].abs().square().sum())
                size += float(true[sure].abs().square().sum())
        return {
            "off": (wrong / size) ** 0.5 if size else 0.0,
            "unsure": max((float(mask.double().mean()) for mask in unsure if mask.numel()), default=0.0),
            "input_bytes": sum(t.nbytes for t in ring.tensors(known.arguments)),
            "output_bytes": sum(t.nbytes for t in expected),
        }

    def _check(self, message: dict[str, Any]) -> dict[str, Any]:
        """Judge the candidate's outputs, a list of one for each of `items`. Reply: `structure` (an error or None),
        `mismatches` of each item, and whether the reference's own output lies in an input's memory (`shared`)."""
        assert self._state.device is not None
        tree, items, self._outputs = message["tree"], message["items"], []
        found: list[list[Any]] = []
        structure, shared = None, False
        for number, item in enumerate(items):
            # Before anything that may differ between ranks.
            known = self._right(item)
            expected, oracle, unsure = known.right
            shared |= known.shared
            if structure is not None:
                continue
            try:
                part = tree["items"][number]
                if (structure := structure_error(expected, part)) is not None:
                    continue
                output = self._state.exchange["outputs"].read(part, self._state.device)
            except (MalformedError, KeyError, TypeError, IndexError) as error:
                structure = f"the output cannot be read: {error}"
                continue
            output = self._canonical(output, known.arguments)
            how = self._how(message["check"])
            mismatches = compare(output, expected, oracle, trial=message["trial"], unsure=unsure, **how)
            self._outputs.append(output if mismatches else None)
            found.append([to_json(m) for m in mismatches])
        return {"structure": structure, "mismatches": found, "shared": shared}

    def _how(self, check: str) -> dict[str, Any]:
        assert self._problem is not None
        return {
            "exact": self._problem.tolerance == "exact",
            "check": check,
            "world_size": self._state.world_size,
        }

    def _explain(self, message: dict[str, Any]) -> dict[str, Any]:
        """Whether an output that the last check found wrong, number `number`, is what would be right for one of the
        items `others`. Reply: `likeness`, [whole, share of wrong elements] of each; None on a rank that is right."""
        output = self._outputs[message["number"]] if message["number"] < len(self._outputs) else None
        right = ring.clone(self._right(message["item"]).right)
        found = []
        for item in message["others"]:
            other = self._right(item).right
            if output is not None:
                found.append(likeness(output, right, other, trial=0, **self._how(message["check"])))
        return {"likeness": found if output is not None else None}

    def _rotate(self, message: dict[str, Any]) -> dict[str, Any]:
        state = self._state
        state.rotate({number: slot.arguments for number, slot in self._slots.items()}, message["copies"])
        self._drawn = None
        with torch.set_grad_enabled(self._state.use.gradients):
            for number in range(self._communicators):  # some collectives connect on their first use
                state.platform.use_communicator(number)
                self._run_slot(0)
            state.platform.use_communicator(0)
            state.platform.synchronize()
        return {"communicators": self._communicators}

    def _run_slot(self, i: int) -> Any:
        assert self._problem is not None
        # Kept until the next call, as the candidate's is: else the allocator would hand the reference alone the same
        # memory for every output.
        arguments = self._state.ring[i]
        self._last = self._state.use.answer(self._problem.reference(*arguments), arguments)
        return self._last

    def _time(self, message: dict[str, Any]) -> dict[str, Any]:
        platform = self._state.platform
        platform.use_communicator(message["plan"]["communicator"])
        try:
            self._drawn = None
            # Outputs are copied as the candidate's are, so that both sides are timed alike.
            self._shelf.clear()
            with torch.set_grad_enabled(self._state.use.gradients):
                return self._state.time(self._run_slot, message, take=lambda call, output: self._shelf.copy(output))
        finally:
            platform.use_communicator(0)

    def _measure(self, message: dict[str, Any]) -> dict[str, Any]:
        if self._state.world_size == 1:
            raise HarnessError("nothing to measure with one rank")
        return {"figures": self._state.platform.measure(self._state.rank, self._state.world_size)}

    def _calibrate(self, message: dict[str, Any]) -> dict[str, Any]:
        return peaks.measure(self._state)


def _in_float64(value: Any) -> Any:
    """Real and complex numbers at twice their precision."""

    def widened(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_complex():
            return tensor.to(torch.complex128)
        return tensor.double() if tensor.is_floating_point() else tensor

    return ring.map_tensors(value, widened)
