"""The untrusted role: imports the candidate, calls it, times it. Holds no seed and no expected value."""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from typing import Any

import torch

from harness import collectives, extension, guard, kit, profiling, ring
from harness.errors import HarnessError
from harness.lookout import Lookout
from harness.progress import Phase
from harness.rank import Handler, Rank
from harness.shelf import Shelf

_GUESSED_BYTES = 256 << 20
_sleep = time.sleep  # bound before any candidate can replace it


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


_AHEAD_MS = 3.0
"""Longer than a host needs to issue what writes a burst's inputs, and its first call."""


class CandidateRank:
    def __init__(self, state: Rank) -> None:
        self._state = state
        self._slots: dict[int, tuple[Any, ...]] = {}
        self._solution: Any = None
        self._last: Any = None
        self._last_copy: Any = None
        self._shelf = Shelf()
        """Outputs of timed calls, by (block, call)."""
        self._output_bytes = 0
        self._lookout = Lookout()
        self.handlers: dict[str, Handler] = {
            "connect": state.connect,
            "attach": state.attach,
            "load": self._load,
            "inputs": self._inputs,
            "rotate": self._rotate,
            "call": self._call,
            "burst": self._burst,
            "settled": self._settled,
            "time": self._time,
            "rest": self._rest,
            "audits": self._hand_over,
            "last": self._last_output,
            "profile": self._profile,
        }

    def _load(self, message: dict[str, Any]) -> dict[str, Any]:
        state, path = self._state, Path(message["path"])
        state.use = ring.Use(**message["use"])
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
        self._tripwire = guard.Tripwire()
        self._lookout.begin(path)
        state.progress.enter(Phase.loading)
        self._solution = import_candidate(path).solution
        state.progress.enter(Phase.idle)
        return self._watched()

    def _watched(self) -> dict[str, Any]:
        """What the candidate has replaced, and what it has looked at."""
        return {"tripped": self._tripwire.tripped(), "looked": self._lookout.seen()}

    def _inputs(self, message: dict[str, Any]) -> dict[str, Any]:
        """Copy inputs that the reference rank has written into slot `slot`: into new buffers, or (`in_place`) into the
        present ones, so that nothing but their contents tells old from new."""
        assert self._state.device is not None
        value = tuple(self._state.exchange["inputs"].read(message["tree"], self._state.device))
        value = self._state.groups.materialise(value)
        slot = message["slot"]
        self._slots[slot] = ring.overwrite(self._slots[slot], value) if message["in_place"] else value
        return {}

    def _rotate(self, message: dict[str, Any]) -> dict[str, Any]:
        self._state.rotate(self._slots, message["copies"], message["exchange"])
        return {}

    def _call(self, message: dict[str, Any]) -> dict[str, Any]:
        """One call, drained, its output handed over: of a slot, or (`seed`) of the ring's first entry with the
        contents of `sample`."""
        state, progress, use = self._state, self._state.progress, self._state.use
        private = None
        if message.get("seed") is None:
            arguments = self._slots[message["slot"]]
            private = ring.clone(arguments)
        else:
            state.ring.draw(message["seed"], few=message["few"])
            state.ring.change(message["sample"], [0])
            arguments = state.ring[0]
        kit._bound().tracing = True
        before = self._collectives()
        handed = use.handed(arguments)
        progress.enter(Phase.calling)
        with torch.set_grad_enabled(use.gradients), state.platform.dirty_memory(self._room(arguments)):
            output = self._solution(*handed)
        progress.enter(Phase.draining)
        state.platform.synchronize()
        odd = guard.not_plain(use.answer(output, handed))
        reply = {
            "tree": state.exchange["outputs"].write(use.answer(output, handed)),
            "odd": odd,
            "shared": odd is None and guard.shared_with(output, use.kept(arguments)),
            "collectives": self._collectives() != before,
            **self._watched(),
        }
        if private is None:
            reply["changed"] = not state.ring.intact()
        else:
            reply["changed"] = not _same(use.kept(arguments), use.kept(private))
            if use.written:
                ring.overwrite(arguments, private)
        self._output_bytes = max((t.nbytes for t in ring.tensors(output)), default=0)
        progress.complete()
        return reply

    def _collectives(self) -> int | None:
        """A number that changes when `solution` calls a collective; those of `kit.symmetric` are not its own."""
        count = collectives.count()
        return None if count is None else count - self._state.platform.own_collectives

    def _room(self, arguments: tuple[Any, ...]) -> int:
        """Bytes that the output will probably need: as many as the last one, at first a guess from the inputs."""
        given = sum(t.nbytes for t in ring.tensors(arguments))
        return self._output_bytes or min(_GUESSED_BYTES, given * self._state.world_size)

    def _burst(self, message: dict[str, Any]) -> dict[str, Any]:
        """Calls back to back without waiting for the device, each with other inputs, those of sample 1; the outputs of
        those in `keep` are copied on the caller's stream as each returns, and handed over. `skew`: [call, kind, ms] for
        this rank."""
        state, progress, platform = self._state, self._state.progress, self._state.platform
        first, keep, kept = message["first"], set(message["keep"]), []
        entries = range(first, first + message["calls"])
        state.ring.draw(message["seed"])
        state.ring.change(0 if platform.name == "cuda" else 1, entries)
        platform.synchronize()
        skew = {call: (kind, ms) for call, kind, ms in message["skew"]}
        kit._bound().tracing = True
        progress.enter(Phase.calling)
        state.align()
        if platform.name == "cuda":
            # What is to be read is written by work that is still ahead of the calls: a stream that does not wait for
            # the current one reads what was there before.
            platform.delay(_AHEAD_MS)
            state.ring.change(1, entries)
        with torch.set_grad_enabled(self._state.use.gradients):
            for i in range(message["calls"]):
                kind, ms = skew.get(i, ("", 0))
                if kind == "device":
                    platform.delay(ms)
                elif kind == "host":
                    _sleep(ms / 1e3)
                elif kind == "load":
                    platform.disturb(ms)
                arguments = state.ring[first + i]
                output = self._solution(*arguments)
                if i in keep:
                    kept.append(ring.clone(state.use.answer(output, arguments)))
        self._last, self._last_copy = output, ring.clone(output)
        progress.enter(Phase.draining)
        platform.synchronize()
        reply: dict[str, Any] = {
            "tree": state.exchange["outputs"].write(kept),
            "odd": guard.not_plain(state.use.answer(output, arguments)),
            **self._watched(),
        }
        del kept
        reply |= guard.footprint(platform.name == "cuda", message["collect"])
        progress.complete()
        return reply

    def _settled(self, message: dict[str, Any]) -> dict[str, Any]:
        """Whether the last output is still what it was when its call returned, now that every rank has drained, and
        whether the inputs are as they were given."""
        settled = _same(self._last, self._last_copy)  # first: an output may lie in an input, which `intact` restores
        return {"settled": settled, "changed": not self._state.ring.intact()}

    def _run_slot(self, i: int) -> Any:
        arguments = self._state.ring[i]
        self._last = self._state.use.answer(self._solution(*arguments), arguments)
        return self._last

    def _time(self, message: dict[str, Any]) -> dict[str, Any]:
        progress = self._state.progress
        block, every = message["block"], message["plan"]["audit_chance"] == 1

        def take(call: int, output: Any) -> None:
            self._tripwire.look(briefly=every)
            self._shelf.offer((block, call), output)

        kit._bound().tracing = False
        progress.enter(Phase.calling)
        with torch.set_grad_enabled(self._state.use.gradients):
            reply = self._state.time(self._run_slot, message, take)
        progress.complete()
        return {**reply, **self._watched()}

    def _rest(self, message: dict[str, Any]) -> dict[str, Any]:
        """What is to be done on nobody's clock; garbage is collected when this has been answered or before."""
        self._shelf.prepare()
        return {"odd": guard.not_plain(self._last)}

    def _hand_over(self, message: dict[str, Any]) -> dict[str, Any]:
        """The outputs `take`, each [block, call], or, without, which there are and of how many bytes."""
        if "take" not in message:
            sizes = {key: sum(t.nbytes for t in ring.tensors(copy)) for key, copy in self._shelf.copies.items()}
            return {"there": [[*key, size] for key, size in sizes.items()]}
        outputs = [self._shelf.copies[block, call] for block, call in message["take"]]
        if message["done"]:
            self._shelf.clear()
        return {"tree": self._state.exchange["outputs"].write(outputs)}

    def _last_output(self, message: dict[str, Any]) -> dict[str, Any]:
        """The output of the last timed call."""
        return {"tree": self._state.exchange["outputs"].write(self._last), "changed": not self._state.ring.intact()}

    def _profile(self, message: dict[str, Any]) -> dict[str, Any]:
        """Calls to be looked at in the `way` asked for: traced, repeated or counted (`profiling.py`)."""
        state, progress = self._state, self._state.progress
        progress.enter(Phase.calling)
        kit._bound().tracing = True
        with torch.set_grad_enabled(state.use.gradients):
            match message["way"]:
                case "trace":
                    state.rotate(self._slots, 1)
                    kit._bound().profiling = True
                    trace = Path(message["folder"]) / f"trace.{state.rank}.json"
                    reply = profiling.trace_calls(self._run_slot, message["iterations"], state, trace)
                    kit._bound().profiling = False
                case "repeat":
                    reply = profiling.repeat(self._run_slot, message["iterations"], state)
                case _:
                    reply = profiling.count(self._run_slot, message, state)
        progress.complete()
        return reply


def _same(a: Any, b: Any) -> bool:
    """Whether two values hold the same bits in all their tensors."""
    pairs = list(zip(ring.tensors(a), ring.tensors(b), strict=True))
    return all(ring.same_bits(x, y) for x, y in pairs)
