"""The stage between correctness and timing: what is right in single calls must stay right however calls follow.

Inputs are rewritten so that neither address nor version counter tells, then bursts of calls are made without waiting
for the device while ranks are held up at random. Every output is compared in full on every rank. Imports no torch.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import secrets
import signal
import time
from dataclasses import dataclass
from typing import Any

from harness.diagnosis import AFTER, EARLY
from harness.pair import FailedError, Item, Other, Pair
from harness.slots import MOST_CALLS
from harness.types import Verdict

BURSTS = 6
_CALLS = (6, MOST_CALLS)
_CHECKS_S = 0.3
"""About how long all outputs of the bursts may take to compare; at least two of each burst are."""
_PULSES, _PULSE_S = (6, 24), 0.005
"""How often ranks are stopped in a burst, at least and at most: once in so many seconds of the last one."""
_LEAK_BYTES = 1 << 20
"""Growth per call below this is not called a leak."""
_AGAIN = 4
"""How often a burst is made again if memory has grown: what is kept for new shapes or values is there already."""
_random = random.SystemRandom()


@dataclass(frozen=True)
class _Burst:
    """What is called in a burst: `calls` calls with the ring's entries from `first` on, drawn from `seed`; the outputs
    of those in `keep` are compared."""

    seed: int
    first: int
    calls: int
    keep: tuple[int, ...]


def run(pair: Pair, ring: int, slots: int) -> None:
    """With `ring` entries made of `slots` slots. Raises FailedError."""
    sparse(pair)
    room = max(2, int(_CHECKS_S / BURSTS / max(pair.check_s, 1e-6)))
    footprints, calls, pulses = [], [], _PULSES[0]
    for number in range(BURSTS):
        count = _random.randint(*_CALLS)
        keep = tuple(sorted(_random.sample(range(count), min(count, room))))
        burst = _Burst(secrets.randbits(60), _random.randrange(ring), count, keep)
        footprint, seconds = _make(pair, number, burst, slots, pulses)
        footprints.append(footprint)
        calls.append(count)
        pulses = min(_PULSES[1], max(_PULSES[0], round(seconds / _PULSE_S)))
    _threads(footprints, calls[1:])
    if _grown(footprints, calls[1:]):
        again = [_make(pair, BURSTS + number, burst, slots, pulses, collect=True)[0] for number in range(_AGAIN)]
        if growing := _grown(again, [burst.calls] * (_AGAIN - 1)):
            raise FailedError(Verdict.out_of_memory, f"{growing} after every call")


def in_place(pair: Pair, slot: int, trial: int) -> None:
    """All of the inputs of the last call overwritten where they are: address, shape and version counter stay."""
    pair.give_inputs(slot, in_place=True)
    replies = pair.ask("call", {"slot": slot}, pair.call_deadline(pair.limits.call_s))
    pair.judge(
        replies, [{"slot": slot}], one=True, trial=trial, verdict=Verdict.wrong_values,
        others=[
            ("the inputs that were there before", {"slot": slot, "former": True}, Verdict.integrity)
        ],
        note=" (new inputs in the same buffers as in the last call)",
    )  # fmt: skip


def sparse(pair: Pair) -> None:
    """A few elements changed where they are, twice: a fingerprint of some elements stays, one of all hardly moves."""
    item = {"seed": secrets.randbits(60), "few": True, "entry": 0}
    deadline = pair.call_deadline(pair.limits.call_s)
    pair.ask("call", item | {"sample": -1}, deadline)  # as they were given: nothing to judge yet
    for sample in range(2):
        replies = pair.ask("call", item | {"sample": sample}, deadline)
        pair.judge(
            replies, [item | {"sample": sample}], one=True, trial=pair.request.trials, verdict=Verdict.wrong_values,
            others=[
                ("the inputs before a few elements were changed", item | {"sample": before}, Verdict.integrity)
                for before in range(sample - 1, -2, -1)
            ],
            note=" (a few elements of the inputs changed in place)",
        )  # fmt: skip


def _make(
    pair: Pair, number: int, burst: _Burst, slots: int, pulses: int, *, collect: bool = False
) -> tuple[list[dict[str, int]], float]:
    """Makes a burst; returns the footprint of each rank after it (`collect`: without what only waits for the garbage
    collector), and how long it took."""
    seed, first, count, keep = burst.seed, burst.first, burst.calls, burst.keep
    skew, said = _skew(pair.candidate.world_size, count)
    message = {"seed": seed, "first": first, "calls": count, "keep": list(keep), "collect": collect}
    began = time.monotonic()
    replies = pair.ask(
        "burst",
        [{**message, "skew": own} for own in skew],
        # Calls that take seconds each are slow, not stuck.
        pair.call_deadline(max(pair.limits.call_s, 3 * count * pair.call_s)),
        meanwhile=lambda: _pulses(pair, pulses),
        when=f"in {count} calls back to back, {said}",
    )
    seconds = time.monotonic() - began

    def item(call: int) -> Item:
        return {"seed": seed, "sample": 1, "entry": first + call}

    def others(kept: int) -> list[Other]:
        """A rank that is late may see what the next call has written already."""
        at = keep[kept]
        calls = range(at - 1, max(at - min(3, slots), -1), -1)
        before: list[Other] = [(EARLY, item(at) | {"sample": 0}, None)]
        before += [(f"the call {at - call} before", item(call), None) for call in calls]
        return [*before, (AFTER, item(at + 1), None)] if at + 1 < count else before

    pair.judge(
        replies, [item(call) for call in keep], trial=pair.request.trials, verdict=Verdict.race, others=others,
        note=f" (burst {number + 1}, {count} calls back to back, {said}; single calls were right)",
    )  # fmt: skip
    pair.ask("settled", {}, pair.limits.call_s)
    return [_footprint(reply) for reply in replies], seconds


def _skew(world_size: int, count: int) -> tuple[list[list[list[Any]]], str]:
    """For each rank [call, kind, ms] of what holds it up, and a text."""
    plan: list[list[list[Any]]] = [[] for _ in range(world_size)]
    ranks = _random.sample(range(world_size), world_size)
    late, host, loaded = ranks[0], ranks[1 % world_size], ranks[2 % world_size]
    plan[loaded].append([0, "load", float(count)])
    for call in _random.sample(range(1, count), 2):
        plan[late].append([call, "device", _random.uniform(1.0, 8.0)])
    plan[host].append([_random.randrange(1, count), "host", _random.uniform(4.0, 20.0)])
    if world_size == 1:
        return plan, "alone"
    return plan, f"ranks {late} and {host} held up at random"


def _pulses(pair: Pair, count: int) -> None:
    """Stop one rank after another for a moment, wherever it is: on cpu also inside `solution`."""
    if pair.box.platform.name != "cpu":
        return
    for _ in range(count):
        if pair.candidate.answered:
            return
        pid = _random.choice(pair.candidate.pids)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            try:
                time.sleep(_random.uniform(0.001, 0.006))
            finally:
                os.kill(pid, signal.SIGCONT)
        time.sleep(_random.uniform(0.0, 0.003))


_MOST = 1 << 60
"""Threads or bytes: more than that is no number of them."""


def _footprint(reply: dict[str, Any]) -> dict[str, int]:
    """What a rank says of itself, checked."""
    names = ("threads", "host_bytes", "device_bytes")
    return {name: value if isinstance(value := reply.get(name), int) and 0 <= value <= _MOST else 0 for name in names}


def _threads(footprints: list[list[dict[str, int]]], calls: list[int]) -> None:
    """Raises FailedError if the threads of a rank grow with every call. The first burst may start some."""
    for rank, steps in enumerate(_steps(footprints, "threads")):
        if all(step >= count / 2 for step, count in zip(steps, calls, strict=True)):
            raise FailedError(
                Verdict.integrity,
                f"rank {rank} starts a thread with every call and leaves it running: make pools and process groups "
                "(`dist.new_group`) once and keep them",
            )


def _grown(footprints: list[list[dict[str, int]]], calls: list[int]) -> str | None:
    """Which rank holds more memory after each burst, and how much more per call. The first burst may fill caches."""
    for name, where in (("device_bytes", "device"), ("host_bytes", "host")):
        for rank, steps in enumerate(_steps(footprints, name)):
            grown = [step / count for step, count in zip(steps, calls, strict=True)]
            if min(grown) > _LEAK_BYTES:
                return f"rank {rank} holds {sum(grown) / len(grown) / 2**20:.1f} MiB more {where} memory"
    return None


def _steps(footprints: list[list[dict[str, int]]], name: str) -> list[list[int]]:
    """Of each rank, by how much a number grew from one burst to the next."""
    return [
        [after[name] - before[name] for before, after in itertools.pairwise(seen)]
        for seen in zip(*footprints, strict=True)
    ]
