"""Any process of the pool may die at any moment: the evaluation that it hits ends, and the next one is right."""

import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest

from harness.errors import HarnessError
from harness.evaluate import Sandbox
from harness.types import Backend, Candidate, Limits, Request, Verdict
from tests.processes import descendants

KILLS = 100
LIMITS = Limits(load_s=10, first_call_s=10, call_s=10)
RIGHT = """
import torch, torch.distributed as dist
from harness import kit
{build}
def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    return out
"""
WRONG = "def solution(tensor):\n    return tensor.clone()\n"


def request(source: str, timing: bool = False) -> Request:
    return Request(
        candidate=Candidate(source=source, backend=Backend.cpp),
        problem=1,
        case="tiny",
        platform="cpu",
        world_size=2,
        dtype="float32",
        timing=timing,
        trials=2,
        limits=LIMITS,
    )


@pytest.mark.slow
def test_a_hundred_kills_at_random_never_wedge_the_harness(capsys):
    seed = random.randrange(10**6)
    draw = random.Random(seed)
    killed: dict[str, int] = {}
    verdicts: dict[str, int] = {}
    slowest_s = 0.0
    with Sandbox("cpu", 2, LIMITS) as box:
        assert box.evaluate(request(RIGHT.format(build=""))).passed
        while sum(killed.values()) < KILLS:
            # Every third candidate is compiled, so that builders and compilers are there to be hit; half are timed.
            number = sum(killed.values())
            build = f'kit.build("""extern "C" int n{seed}_{number}() {{ return 1; }}""")' if number % 3 == 0 else ""
            killer = threading.Timer(
                draw.choice([0.0, draw.uniform(0, 0.4), draw.uniform(0, 1.5)]), _kill, [draw, killed]
            )
            killer.start()
            started = time.monotonic()
            try:
                result = box.evaluate(request(RIGHT.format(build=build), timing=draw.random() < 0.5))
                verdicts[result.verdict] = verdicts.get(result.verdict, 0) + 1
                # A candidate whose own process died is told so; nothing else may come of it.
                assert result.verdict in (Verdict.passed, Verdict.runtime_error), result.summary
            except HarnessError as error:
                verdicts[type(error).__name__] = verdicts.get(type(error).__name__, 0) + 1
            killer.join()
            slowest_s = max(slowest_s, time.monotonic() - started)
            again = box.evaluate(request(RIGHT.format(build=build)))
            assert again.passed, f"seed {seed}, after {killed}: {again.summary}"
            if number % 10 == 0:
                assert box.evaluate(request(WRONG)).verdict is Verdict.wrong_values
    with capsys.disabled():
        print(f"\nkilled {killed}; evaluations that were hit ended as {verdicts}, the slowest after {slowest_s:.1f} s")
    assert len(killed) >= 3 and slowest_s < 60


def _kill(draw: random.Random, killed: dict[str, int]) -> None:
    """One process of ours at random, weighted towards none: server, reference, candidate, next candidate, builder."""
    try:
        victims = descendants(os.getpid())
        pid = draw.choice(victims)
        name = _role(pid)
        os.kill(pid, signal.SIGKILL)
    except (OSError, IndexError):  # it ended by itself meanwhile
        return
    killed[name] = killed.get(name, 0) + 1


def _role(pid: int) -> str:
    """From the log that a rank writes to: `reference`, `candidate`, `build`; else `jail` or `fork server`."""
    log = os.readlink(f"/proc/{pid}/fd/1")
    if log.startswith("pipe:"):
        return "jail"
    folder = Path(log).parent.name
    return folder.partition("-")[0] if "-" in folder and not folder.startswith("ringsmith") else "fork server"
