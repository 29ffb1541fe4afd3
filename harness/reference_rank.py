"""The trusted role: draws secret inputs, knows what is right, judges outputs, times the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from harness import peaks
from harness.errors import HarnessError
from harness.exchange import MalformedError, structure_error
from harness.numerics import compare
from harness.rank import Handler, Rank
from harness.types import to_json
from problems import catalogue
from problems.spec import Case, Problem, RankContext


@dataclass
class _Slot:
    arguments: tuple[Any, ...]
    known: tuple[Any, Any] | None = None
    """What is right, once it has been asked for: the reference's output in the run's dtype, and on the same inputs in
    float64 (for data movement the same output again)."""


class ReferenceRank:
    def __init__(self, state: Rank) -> None:
        self._state = state
        self._problem: Problem | None = None
        self._case = Case("", {})
        self._dtype = torch.float32
        self._slots: dict[int, _Slot] = {}
        self._last: Any = None
        self._communicators = 1
        self.handlers: dict[str, Handler] = {
            "connect": self._connect,
            "attach": state.attach,
            "setup": self._setup,
            "inputs": self._inputs,
            "rotate": self._rotate,
            "check": self._check,
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
        self._problem = catalogue.load(message["problem"])
        self._case = Case(message["case"], message["sizes"])
        self._dtype = getattr(torch, message["dtype"])
        if self._state.platform.name == "cuda":
            torch.cuda.empty_cache()
        return {}

    def _inputs(self, message: dict[str, Any]) -> dict[str, Any]:
        """Draw the inputs of slot `slot` from `seed` and hand them over."""
        assert self._problem is not None and self._state.device is not None
        context = RankContext(
            seed=message["seed"],
            rank=self._state.rank,
            world_size=self._state.world_size,
            dtype=self._dtype,
            device=self._state.device,
        )
        arguments = self._problem.inputs(self._case, context)
        self._slots[message["slot"]] = _Slot(arguments)
        return {"tree": self._state.exchange["inputs"].write(list(arguments))}

    def _right(self, slot: _Slot) -> tuple[Any, Any]:
        """Collective, like the reference itself: every rank asks at the same time."""
        assert self._problem is not None
        if slot.known is None:
            with torch.no_grad():
                expected = self._problem.reference(*slot.arguments)
                exact = self._problem.tolerance == "exact"
                oracle = expected if exact else self._problem.reference(*_in_float64(slot.arguments))
            self._state.platform.synchronize()
            slot.known = expected, oracle
        return slot.known

    def _check(self, message: dict[str, Any]) -> dict[str, Any]:
        """Judge the candidate's output for a slot. Reply: `structure` (an error or None) and `mismatches`."""
        assert self._problem is not None and self._state.device is not None
        # Before anything that may differ between ranks.
        expected, oracle = self._right(self._slots[message["slot"]])
        try:
            if (error := structure_error(expected, message["tree"])) is not None:
                return {"structure": error, "mismatches": []}
            output = self._state.exchange["outputs"].read(message["tree"], self._state.device)
        except (MalformedError, KeyError, TypeError) as error:
            return {"structure": f"the output cannot be read: {error}", "mismatches": []}
        found = compare(
            output,
            expected,
            oracle,
            exact=self._problem.tolerance == "exact",
            check=message["check"],
            trial=message["trial"],
            world_size=self._state.world_size,
        )
        return {"structure": None, "mismatches": [to_json(m) for m in found]}

    def _rotate(self, message: dict[str, Any]) -> dict[str, Any]:
        state = self._state
        state.rotate({number: slot.arguments for number, slot in self._slots.items()}, message["copies"])
        with torch.no_grad():
            for number in range(self._communicators):  # some collectives connect on their first use
                state.platform.use_communicator(number)
                self._run_slot(0)
            state.platform.use_communicator(0)
            state.platform.synchronize()
        return {"communicators": self._communicators}

    def _run_slot(self, i: int) -> None:
        assert self._problem is not None
        # Kept until the next call, as the candidate's is: else the allocator would hand the reference alone the same
        # memory for every output.
        self._last = self._problem.reference(*self._state.arguments(i))

    def _time(self, message: dict[str, Any]) -> dict[str, Any]:
        platform = self._state.platform
        platform.use_communicator(message["plan"]["communicator"])
        try:
            with torch.no_grad():
                return self._state.time(self._run_slot, message)
        finally:
            platform.use_communicator(0)

    def _measure(self, message: dict[str, Any]) -> dict[str, Any]:
        if self._state.world_size == 1:
            raise HarnessError("nothing to measure with one rank")
        return {"figures": self._state.platform.measure(self._state.rank, self._state.world_size)}

    def _calibrate(self, message: dict[str, Any]) -> dict[str, Any]:
        return peaks.measure(self._state)


def _in_float64(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.is_complex():
            return value.to(torch.complex128)
        return value.double() if value.is_floating_point() else value
    if isinstance(value, (tuple, list)):
        return type(value)(_in_float64(item) for item in value)
    return value
