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
        before=lambda sample: log.append("change"),
        take=lambda number, output: taken.append((number, output)),
    )
    times = (platform.time_eager if mode == "eager" else platform.time_device)(call, plan, hooks)
    assert times.times_us == [500 / (plan.calls * plan.repeats)] * plan.samples
    assert times.lead_us == [500] * plan.samples
    samples = " ".join(log).split("drain ")[1:]
    assert len(samples) == plan.samples
    return [sample.split() for sample in samples], taken, times.audited


@pytest.mark.parametrize("mode", ["eager", "device"])
def test_inputs_change_when_the_device_has_been_busy(mode):
    samples, taken, audited = recorded(mode, Plan(4, 2, prime_us=100.0))
    calls = ["call"] * (2 if mode == "eager" else 1)
    assert samples == [["busy", "change", "event", "align", "event", *calls, "event"]] * 4
    assert taken == [] and audited == []


@pytest.mark.parametrize("mode", ["eager", "device"])
def test_first_outputs_are_taken(mode):
    _, taken, audited = recorded(mode, Plan(4, 2, prime_us=100.0, first_chance=1.0))
    assert [number for number, _ in taken] == [0, 2, 4, 6] and audited == [0, 1, 2, 3]


@pytest.mark.parametrize("mode", ["eager", "device"])
def test_outputs_are_taken_under_the_number_of_their_call(mode):
    plan = Plan(30, 3, repeats=2, audit_chance=0.5)
    _, taken, audited = recorded(mode, plan)
    assert taken and audited == sorted({number // 3 for number, _ in taken})
    assert all(output == (number if mode == "eager" else number % 3) for number, output in taken)
