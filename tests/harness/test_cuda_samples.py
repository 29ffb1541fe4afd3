"""The order of things around a timed sample on cuda, with a device that only writes down what it is asked for."""

from types import SimpleNamespace

import pytest
import torch

from harness.platforms import Hooks, Plan
from harness.platforms.cuda import Cuda


class Event:
    def __init__(self, log) -> None:
        self.log = log

    def record(self, stream) -> None:
        self.log.append("event")

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other) -> float:
        return 0.5


def recorded(mode, plan):
    """What is asked for in each sample, and the outputs that are taken."""
    log, taken = [], []
    platform = Cuda()
    platform._synchronize = lambda: log.append("drain")
    platform._busy = lambda cycles: log.append("busy")
    platform._event = lambda enable_timing: Event(log)
    platform._current_stream = lambda: None
    platform._filler, platform._sink = torch.zeros(4, dtype=torch.int64), torch.zeros((), dtype=torch.int64)

    def call(i):
        log.append("call")
        return i

    # One graph of all calls; its outputs are numbers of calls within it.
    graph = SimpleNamespace(replay=lambda: log.append("call"))
    platform._captured = lambda call, plan: [(graph, list(range(plan.calls)))]

    hooks = Hooks(
        align=lambda: log.append("align"),
        before=lambda turn: log.append(f"change-{turn}"),
        prepare=lambda turn: log.append(f"prepare-{turn}"),
        take=lambda number, output: taken.append((number, output)),
    )
    times = (platform.time_eager if mode == "eager" else platform.time_device)(call, plan, hooks)
    assert times.times_us == [500 / plan.calls] * plan.samples
    assert times.lead_us == [500] * plan.samples
    assert len(times.turning_us) == plan.samples
    first, *turns = " ".join(log).split("drain ")
    assert first == "prepare-0 "
    assert len(turns) == plan.samples * plan.turns
    return [turn.split() for turn in turns], taken, times.audited


@pytest.mark.parametrize("mode", ["eager", "device"])
@pytest.mark.parametrize(("turns", "repeats"), [(1, 1), (3, 1), (3, 3)])
def test_inputs_change_when_the_device_has_been_busy(mode, turns, repeats):
    made, taken, audited = recorded(mode, Plan(4, 2, prime_us=100.0, turns=turns, repeats=repeats))
    calls = ["call"] * (2 if mode == "eager" else 1)
    for number, turn in enumerate(made):
        called = number % turns >= turns - repeats
        # The next one's inputs are got ready while the device is at these calls, or busy before them.
        ready = [f"prepare-{number + 1}"] if number + 1 < len(made) else []
        before = ["busy", f"change-{number}", "event", "align", "event"]
        assert turn == [*before, *(calls if called else []), "event", *ready]
    assert taken == [] and audited == []


@pytest.mark.parametrize("mode", ["eager", "device"])
def test_first_outputs_are_taken(mode):
    _, taken, audited = recorded(mode, Plan(4, 2, prime_us=100.0, first_chance=1.0))
    assert [number for number, _ in taken] == [0, 2, 4, 6] and audited == [0, 1, 2, 3]


@pytest.mark.parametrize("mode", ["eager", "device"])
@pytest.mark.parametrize("repeats", [1, 2])
def test_outputs_are_taken_under_the_number_of_their_call(mode, repeats):
    plan = Plan(30, 3, turns=2, repeats=repeats, audit_chance=0.5)
    _, taken, audited = recorded(mode, plan)
    assert taken and audited == sorted({number // 6 for number, _ in taken})
    assert all(output == (number if mode == "eager" else number % 3) for number, output in taken)
    assert {number // 3 % 2 for number, _ in taken} == ({0, 1} if repeats == 2 else {1})
