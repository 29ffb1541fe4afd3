"""The trusted role: draws secret inputs, knows what is right, judges outputs, times the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from harness import guard, peaks, ring
from harness.errors import HarnessError
from harness.exchange import MalformedError, structure_error
from harness.explainer import Explainer
from harness.numerics import compare
from harness.rank import Handler, Rank
from harness.shelf import Shelf
from harness.types import to_json
from harness.wording import one_line
from problems import catalogue
from problems.spec import Case, Problem, RankContext

Right = tuple[Any, Any, Any]
"""What is right: the reference's answer in the run's dtype, on the same inputs in float64 (for data movement the same
again), both in the problem's canonical form; and which of its elements are not judged (None: all are)."""


@dataclass(frozen=True)
class Known:
    """What is known of one set of inputs."""

    arguments: tuple[Any, ...]
    right: Right
    shared: bool
    """Whether the reference's output lies in an input's memory."""


@dataclass
class Slot:
    arguments: tuple[Any, ...]
    given: tuple[Any, ...]
    """The same as it was sent to the other side: sets of ranks in place of process groups."""
    known: Known | None = None
    """Once it has been asked for."""
    former: Slot | None = None
    """What the slot held before its inputs were overwritten in place."""


class ReferenceRank:
    def __init__(self, state: Rank) -> None:
        self.state = state
        self.problem: Problem | None = None
        self._case = Case("", {})
        self._dtype = torch.float32
        self.slots: dict[int, Slot] = {}
        self._last: Any = None
        self._communicators = 1
        self._drawn: tuple[int, bool, bool] | None = None
        """What the ring has been drawn from last: the seed, whether few elements change, whether for a graph."""
        self._shelf = Shelf()
        self.outputs: list[Any] = []
        """Of the last check, those that were wrong."""
        self.handlers: dict[str, Handler] = {
            "connect": self._connect,
            "attach": state.attach,
            "setup": self._setup,
            "inputs": self._inputs,
            "alike": self._alike,
            "rotate": self._rotate,
            "answer": self._answer,
            "check": self._check,
            "time": self._time,
            "measure": self._measure,
            "probe": state.probe,
            "calibrate": self._calibrate,
            **Explainer(self).handlers,
        }

    def _connect(self, message: dict[str, Any]) -> dict[str, Any]:
        def then() -> None:
            self._communicators = self.state.platform.communicators()

        return self.state.connect(message, then)

    def _setup(self, message: dict[str, Any]) -> dict[str, Any]:
        """Choose problem, case and dtype; forget the former ones' slots."""
        self.slots.clear()
        self.problem = catalogue.load(message["problem"], message["suite"])
        self._case = Case(message["case"], message["sizes"])
        self._dtype = getattr(torch, message["dtype"])
        problem = self.problem
        self.state.use = ring.Use(problem.updates, problem.scratch, problem.changing, problem.few, problem.gradients)
        if self.state.platform.name == "cuda":
            torch.cuda.empty_cache()
        return {}

    def _inputs(self, message: dict[str, Any]) -> dict[str, Any]:
        """Draw the inputs of slot `slot` from `seed` and hand them over, unless nobody wants them (`alone`)."""
        assert self.problem is not None and self.state.device is not None
        context = RankContext(
            seed=message["seed"],
            rank=self.state.rank,
            world_size=self.state.world_size,
            dtype=self._dtype,
            device=self.state.device,
        )
        # Contiguous, as they arrive on the other side, and each tensor with memory of its own.
        arguments = ring.clone(self.problem.inputs(self._case, context), contiguous=True)
        former = self.slots[message["slot"]] if message["in_place"] else None
        if former is not None:
            former.former = None
        self.slots[message["slot"]] = Slot(self.state.groups.materialise(arguments), arguments, former=former)
        return {} if message.get("alone") else {"tree": self.state.exchange["inputs"].write(list(arguments))}

    def right(self, item: dict[str, Any]) -> Known:
        """What is right for an item. Collective, like the reference itself: every rank asks at the same time.

        An item is a slot (`slot`; with `former`, what it held before), or an entry of the ring (`seed`, `sample`,
        `entry`; with `few`, where few elements have changed; with `captured`, in a graph)."""
        if "slot" in item:
            slot = self.slots[item["slot"]]
            if item.get("former"):
                assert slot.former is not None
                slot = slot.former
            if slot.known is None:
                slot.known = self.evaluate(slot.arguments)
            return slot.known
        inputs, drawn = self.state.ring, (item["seed"], item.get("few", False), item.get("captured", False))
        if self._drawn != drawn:
            inputs.draw(drawn[0], few=drawn[1], captured=drawn[2])
            self._drawn = drawn
        inputs.change(item["sample"], [item["entry"]])
        return self.evaluate(inputs[item["entry"]])

    def evaluate(self, arguments: tuple[Any, ...]) -> Known:
        """What is right for any arguments. Collective."""
        assert self.problem is not None
        with torch.set_grad_enabled(self.state.use.gradients):
            expected, shared = self._answer_to(arguments)
            computed = self.problem.tolerance == "rounding"
            oracle = self._answer_to(_in_float64(arguments))[0] if computed else expected
            unsure = self.problem.unsure(oracle, *arguments) if self.problem.unsure else None
            right = (self.canonical(expected, arguments), self.canonical(oracle, arguments), unsure)
        self.state.platform.synchronize()
        return Known(arguments, right, shared)

    def oracle(self, arguments: tuple[Any, ...]) -> Any:
        """The second part of `evaluate(arguments).right` alone, which may include those with defaults. Collective."""
        assert self.problem is not None
        with torch.set_grad_enabled(self.state.use.gradients):
            wide = _in_float64(arguments) if self.problem.tolerance == "rounding" else arguments
            return self.canonical(self._answer_to(wide)[0], arguments)

    def _answer_to(self, arguments: tuple[Any, ...]) -> tuple[Any, bool]:
        """The reference's answer, and whether it lies in an input's memory."""
        assert self.problem is not None
        use = self.state.use
        given = use.copied(arguments)
        output = self.problem.reference(*given)
        return use.answer(output, given), guard.shared_with(output, given)

    def canonical(self, output: Any, arguments: tuple[Any, ...]) -> Any:
        assert self.problem is not None
        return self.problem.canonical(output, *arguments) if self.problem.canonical else output

    def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Find out what is right for a slot. Reply: `off`, how far the reference is from its oracle in RMS, relative
        (0 where all is exact), `unsure`, the share of elements that are not judged, and bytes of inputs and outputs."""
        known = self.right({"slot": message["slot"]})
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
        """Judge the candidate's outputs, a list of one for each of `items`, or of those whose numbers are in `which`.
        Reply: `structure` (an error or None), `mismatches` of each item, and whether the reference's own output lies in
        an input's memory (`shared`)."""
        assert self.state.device is not None
        tree, items, which, self.outputs = message["tree"], message["items"], message["which"], []
        found: list[list[Any]] = []
        structure, shared = None, False
        for number, item in enumerate(items):
            # Before anything that may differ between ranks.
            known = self.right(item)
            expected, oracle, unsure = known.right
            shared |= known.shared
            if structure is not None:
                continue
            if which is not None and number not in which:
                self.outputs.append(None)
                found.append([])
                continue
            try:
                part = tree["items"][number if which is None else which.index(number)]
                if (structure := structure_error(expected, part)) is not None:
                    continue
                output = self.state.exchange["outputs"].read(part, self.state.device)
            except (MalformedError, KeyError, TypeError, IndexError) as error:
                structure = f"the output cannot be read: {error}"
                continue
            output = self.canonical(output, known.arguments)
            how = self.how(message["check"])
            mismatches = compare(output, expected, oracle, trial=message["trial"], unsure=unsure, **how)
            self.outputs.append(output if mismatches else None)
            found.append([to_json(m) for m in mismatches])
        # It names types, keys and shapes of the candidate's.
        said = None if structure is None else one_line(structure, 1000)
        return {"structure": said, "mismatches": found, "shared": shared}

    def how(self, check: str) -> dict[str, Any]:
        assert self.problem is not None
        return {
            "exact": self.problem.tolerance == "exact",
            "check": check,
            "world_size": self.state.world_size,
        }

    def _alike(self, message: dict[str, Any]) -> dict[str, Any]:
        """Whether this rank's slots `fit` into each other's memory, and are `alike` but for contents."""
        given = [slot.arguments for slot in self.slots.values()]
        return {"fit": ring.alike(given), "alike": ring.alike(given, whole=True)}

    def _rotate(self, message: dict[str, Any]) -> dict[str, Any]:
        state, slots = self.state, {number: slot.arguments for number, slot in self.slots.items()}
        state.rotate(slots, message["copies"], message["exchange"])
        self._drawn = None
        with torch.set_grad_enabled(self.state.use.gradients):
            for number in range(self._communicators):  # some collectives connect on their first use
                state.platform.use_communicator(number)
                self._run_slot(0)
            state.platform.use_communicator(0)
            state.platform.synchronize()
        return {"communicators": self._communicators}

    def _run_slot(self, i: int) -> Any:
        assert self.problem is not None
        # Kept until the next call, as the candidate's is: else the allocator would hand the reference alone the same
        # memory for every output.
        arguments = self.state.ring[i]
        self._last = self.state.use.answer(self.problem.reference(*arguments), arguments)
        return self._last

    def _time(self, message: dict[str, Any]) -> dict[str, Any]:
        platform = self.state.platform
        platform.use_communicator(message["plan"]["communicator"])
        try:
            self._drawn = None
            # Outputs are copied as the candidate's are, so that both sides are timed alike.
            self._shelf.clear()
            with torch.set_grad_enabled(self.state.use.gradients):
                reply = self.state.time(self._run_slot, message, take=self._shelf.offer)
            return reply | {"output_bytes": sum(t.nbytes for t in ring.tensors(self._last))}
        finally:
            platform.use_communicator(0)

    def _measure(self, message: dict[str, Any]) -> dict[str, Any]:
        if self.state.world_size == 1:
            raise HarnessError("nothing to measure with one rank")
        return {"figures": self.state.platform.measure(self.state.rank, self.state.world_size)}

    def _calibrate(self, message: dict[str, Any]) -> dict[str, Any]:
        return peaks.measure(self.state)


def _in_float64(value: Any) -> Any:
    """Real and complex numbers at twice their precision."""

    def widened(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_complex():
            return tensor.to(torch.complex128)
        return tensor.double() if tensor.is_floating_point() else tensor

    return ring.map_tensors(value, widened)
