"""The untrusted role: imports the candidate, calls it, times it. Holds no seed and no expected value."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch

from harness import extension, kit
from harness.errors import HarnessError
from harness.profiling import profile_calls
from harness.progress import Phase
from harness.rank import Handler, Rank


class NoSolutionError(Exception):
    """The candidate does not define a callable `solution`."""


def import_candidate(path: Path) -> Any:
    """The candidate's module. Raises whatever it raises, and NoSolutionError."""
    spec = importlib.util.spec_from_file_location("candidate", path)
    if spec is None or spec.loader is None:
        raise HarnessError(f"cannot import {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules["candidate"] = module
    spec.loader.exec_module(module)
    if not callable(getattr(module, "solution", None)):
        raise NoSolutionError("the candidate defines no function `solution`")
    return module


class CandidateRank:
    def __init__(self, state: Rank) -> None:
        self._state = state
        self._slots: dict[int, tuple[Any, ...]] = {}
        self._solution: Any = None
        self._last: Any = None
        self.handlers: dict[str, Handler] = {
            "connect": state.connect,
            "attach": state.attach,
            "load": self._load,
            "inputs": self._inputs,
            "rotate": self._rotate,
            "call": self._call,
            "time": self._time,
            "last": self._last_output,
            "profile": self._profile,
        }

    def _load(self, message: dict[str, Any]) -> dict[str, Any]:
        state, path = self._state, Path(message["path"])
        kit.bind(
            kit._State(
                platform=state.platform,
                rank=state.rank,
                world_size=state.world_size,
                device=state.device,
                progress=state.progress,
                source=path.read_text(encoding="utf-8"),
            )
        )
        extension.install()
        state.progress.enter(Phase.loading)
        self._solution = import_candidate(path).solution
        state.progress.enter(Phase.idle)
        return {}

    def _inputs(self, message: dict[str, Any]) -> dict[str, Any]:
        """Copy inputs that the reference rank has written into slot `slot`."""
        assert self._state.device is not None
        value = self._state.exchange["inputs"].read(message["tree"], self._state.device)
        self._slots[message["slot"]] = tuple(value)
        return {}

    def _call(self, message: dict[str, Any]) -> dict[str, Any]:
        """One call, drained; its output goes to the exchange file unless the caller only warms up."""
        progress = self._state.progress
        progress.enter(Phase.calling)
        with torch.no_grad():
            output = self._solution(*self._slots[message["slot"]])
        progress.enter(Phase.draining)
        self._state.platform.synchronize()
        reply = {"tree": self._state.exchange["outputs"].write(output)}
        progress.complete()
        return reply

    def _rotate(self, message: dict[str, Any]) -> dict[str, Any]:
        self._state.rotate(self._slots, message["copies"])
        return {}

    def _run_slot(self, i: int) -> None:
        self._last = self._solution(*self._state.arguments(i))

    def _time(self, message: dict[str, Any]) -> dict[str, Any]:
        progress = self._state.progress
        progress.enter(Phase.calling)
        with torch.no_grad():
            reply = self._state.time(self._run_slot, message)
        progress.complete()
        return reply

    def _last_output(self, message: dict[str, Any]) -> dict[str, Any]:
        """The output of the last timed call."""
        return {"tree": self._state.exchange["outputs"].write(self._last)}

    def _profile(self, message: dict[str, Any]) -> dict[str, Any]:
        progress = self._state.progress
        progress.enter(Phase.calling)
        self._state.rotate(self._slots, 1)
        state = kit._bound()
        state.profiling = True
        with torch.no_grad():
            reply = profile_calls(
                self._run_slot,
                message["iterations"],
                self._state,
                Path(message["folder"]) / f"trace.{self._state.rank}.json",
            )
        state.profiling = False
        progress.complete()
        return reply
