"""A side that cannot be captured as a CUDA graph has no device figure, and that is all."""

from types import SimpleNamespace

import pytest

from harness.measure import Reading
from harness.platforms import NotCapturableError, Plan
from harness.platforms.cpu import Cpu
from harness.timing import Timed

REPLY = {"not_capturable": "cannot be captured as a CUDA graph: the host\nwaits " + 1000 * "x"}


class Ranks:
    alive, world_size = False, 2

    def begin(self, op, message):
        assert (op, message["mode"]) == ("time", "device")

    def wait(self, deadline_s):
        return [REPLY, REPLY]


def timed(**changes) -> Timed:
    pair = SimpleNamespace(
        reference=Ranks(),
        candidate=Ranks(),
        limits=SimpleNamespace(call_s=1.0),
        box=SimpleNamespace(read_clocks=Reading, platform=Cpu()),
        expect=lambda outcome, doing: outcome,
        call_deadline=lambda limit_s: limit_s,
        **changes,
    )
    return Timed(pair, ring=4, communicators=1)


def test_a_reference_that_is_refused_says_so():
    with pytest.raises(NotCapturableError, match=r"^the reference cannot be captured"):
        timed().reference("device")(Plan(2, 1))


def test_a_candidate_that_is_refused_gets_one_short_line():
    with pytest.raises(NotCapturableError) as refused:
        timed(ask=lambda *_, **__: [REPLY]).candidate("device")(Plan(2, 1))
    assert "\n" not in str(refused.value) and len(str(refused.value)) <= 300
