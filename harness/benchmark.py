"""How long verdicts take and how far their numbers can be trusted (`python -m harness.benchmark`).

    speed    seconds of each kind of evaluation, by stage, beside its target
    aa       the reference evaluated as if it were a candidate, again and again: what the noise is
    references  every problem's reference by itself: eager, device, share of the roofline
    start    seconds until a candidate's ranks are up, by part, one set at a time and two at once
    company  one candidate first to last of ten, while compilers keep the host's processors busy, and while the ranks of
             others come up

Prints a table on stderr and one JSON document on stdout.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform as python_platform
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness import machine, platforms
from harness.errors import HarnessError, UsageError
from harness.evaluate import Sandbox, reference_candidate
from harness.processes import Processes
from harness.types import (
    BACKENDS,
    Candidate,
    DType,
    Evaluation,
    IsolationLevel,
    Limits,
    PlatformName,
    Request,
    Timing,
)
from problems import catalogue
from problems.spec import ProblemError

_EXAMPLES = Path(__file__).resolve().parent.parent / "prompts" / "examples"
_KIT = {"cpu": "cpp/p01_allreduce_shm.py", "cuda": "cuda/p01_allreduce_twoshot.py"}
_INLINE = "cuda/p01_allreduce_loadinline.py"
_TARGETS_S: dict[str, dict[str, float]] = {
    "cpu": {"warm re-evaluation": 1.5, "compile error, kit": 1.5},
    "cuda": {
        "first of a session": 20.0,
        "warm re-evaluation": 3.0,
        "new candidate, kit": 6.0,
        "compile error, kit": 1.5,
        "compile error, load_inline": 5.0,
    },
}
_TRIALS = 5


class Bench:
    """One sandbox and what is asked of it."""

    def __init__(self, platform: PlatformName, world_size: int, isolation: IsolationLevel = "auto") -> None:
        self.platform, self.world_size, self.isolation = platform, world_size, isolation
        platforms.get(platform).check(world_size)
        self.devices = [gpu.index for gpu in machine.gpus()[:world_size]] if platform == "cuda" else None
        self.dtype: DType = "float32" if platform == "cpu" else "bfloat16"
        self.backend = BACKENDS[platform][0]

    def sandbox(self) -> Sandbox:
        return Sandbox(self.platform, self.world_size, isolation=self.isolation, devices=self.devices)

    def processes(self) -> Processes:
        """Without a sandbox, on the same devices."""
        return Processes(self.platform, self.world_size, Limits(), self.isolation, self.devices)

    def example(self, file: str) -> Candidate:
        return Candidate(source=(_EXAMPLES / file).read_text(), backend=self.backend)

    def kit(self) -> Candidate:
        return self.example(_KIT[self.platform])

    def request(self, candidate: Candidate, problem: int = 1, case: str = "pkb", **changes: Any) -> Request:
        settings = {"trials": _TRIALS, "dtype": self.dtype} | changes
        return Request(
            candidate=candidate,
            problem=problem,
            case=case,
            platform=self.platform,
            world_size=self.world_size,
            **settings,
        )


def unseen(candidate: Candidate) -> Candidate:
    """The same with a comment in its C++ or CUDA text that no cache has seen."""
    at = candidate.source.index("#include")
    return _with(candidate, candidate.source[:at] + f"// {uuid.uuid4()}\n" + candidate.source[at:])


def broken(candidate: Candidate) -> Candidate:
    """A new candidate with a statement that does not compile in the last function of its C++ or CUDA text."""
    at = candidate.source.index("extern" if "kit.build" in candidate.source else "void allreduce(")
    return _with(
        unseen(candidate), candidate.source[:at] + f"int broken_{uuid.uuid4().hex} = missing;\n" + candidate.source[at:]
    )


def _with(candidate: Candidate, source: str) -> Candidate:
    return candidate.model_copy(update={"source": source})


# -- speed -------------------------------------------------------------------------------------------------------------


def speed(bench: Bench, repeats: int, inline: bool) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []

    def row(name: str, seconds: list[float], stages: list[dict[str, float]], **more: Any) -> None:
        target = more.pop("target_s", _TARGETS_S[bench.platform].get(name))
        stage_s = {key: round(statistics.median(s.get(key, 0.0) for s in stages), 3) for key in stages[-1]}
        rows.append(
            {"name": name, "seconds": seconds, "median_s": statistics.median(seconds), "target_s": target,
             "stage_s": stage_s, **more}
        )  # fmt: skip
        _say_row(rows[-1])

    started = time.monotonic()
    with bench.sandbox() as box:

        def evaluate(
            make: Callable[[], Candidate], count: int, think: bool = True, case: str = "pkb", verdict: str = "passed"
        ) -> tuple[list[float], list[dict[str, float]]]:
            seconds, found = [], []
            for _ in range(count):
                candidate = make()
                if think:  # as a model does: the next ranks come up meanwhile
                    time.sleep(1.0 if bench.platform == "cpu" else 4.5)
                before = time.monotonic()
                found.append(box.evaluate(bench.request(candidate, case=case)))
                seconds.append(round(time.monotonic() - before, 3))
            assert all(str(e.verdict) == verdict for e in found), [e.summary for e in found]
            return seconds, [e.stage_s for e in found]

        first = box.evaluate(bench.request(unseen(bench.kit())))
        assert first.passed, first.summary
        row("first of a session", [round(time.monotonic() - started, 3)], [first.stage_s])
        kit = bench.kit()
        evaluate(lambda: kit, 1)
        row("warm re-evaluation", *evaluate(lambda: kit, repeats))
        row("re-evaluation at once", *evaluate(lambda: kit, repeats, think=False))
        if bench.platform == "cuda":
            row("warm re-evaluation, large", *evaluate(lambda: kit, 2, case="large"))
        row("new candidate, kit", *evaluate(lambda: unseen(kit), repeats))
        row("compile error, kit", *evaluate(lambda: broken(kit), repeats, verdict="compile_error"))
        if bench.platform == "cuda" and inline:
            plain = bench.example(_INLINE)
            row("compile error, load_inline", *evaluate(lambda: broken(plain), 2, verdict="compile_error"))
            seconds, stages = evaluate(lambda: unseen(plain), 1)
            row("new candidate, load_inline", seconds, stages, target_s=stages[0]["build"] + 3.0)
            row("build, load_inline", [stages[0]["build"]], stages, target_s=30.0)
    return rows


def _say_row(row: dict[str, Any]) -> None:
    stages = ", ".join(f"{name} {seconds:.2f}" for name, seconds in row["stage_s"].items() if seconds >= 0.005)
    target = f"target {row['target_s']:.1f}" if row["target_s"] else ""
    worst = max(row["seconds"])
    _say(f"{row['name']:28s} {row['median_s']:7.2f} s (worst {worst:.2f}) {target:12s} {stages}")


# -- aa ----------------------------------------------------------------------------------------------------------------


def aa(bench: Bench, problems: list[int], cases: list[str], protocols: list[str], repeats: int) -> list[dict[str, Any]]:
    """Every repeat is a whole evaluation: other processes, other seeds."""
    rows = []
    with bench.sandbox() as box:
        for problem in problems:
            candidate = reference_candidate(catalogue.find(problem))
            for case in cases:
                for protocol in protocols:
                    found = [
                        box.evaluate(bench.request(candidate, problem, case, protocol=protocol, trials=1))
                        for _ in range(repeats)
                    ]
                    for mode in ("eager", "device"):
                        rows += _aa_row(found, problem, case, protocol, mode)
    return rows


def _aa_row(found: list[Evaluation], problem: int, case: str, protocol: str, mode: str) -> list[dict[str, Any]]:
    timings = [t for e in found if e.measurement and (t := getattr(e.measurement, mode)) is not None]
    if not timings:
        return []
    row = {
        "problem": problem,
        "case": case,
        "protocol": protocol,
        "mode": mode,
        "reference_us": statistics.median(t.reference.median_us for t in timings),
        "ratios": [[round(v, 4) for v in (t.speedup.low, t.speedup.value, t.speedup.high)] for t in timings],
        "within_2_percent": sum(abs(t.speedup.value - 1) <= 0.02 for t in timings),
        "called_faster": sum(t.speedup.low > 1 for t in timings),
        "called_slower": sum(t.speedup.high < 1 for t in timings),
        "repeats": len(timings),
        "timing_s": round(statistics.median(e.stage_s["timing"] for e in found), 2),
        "slowdowns": sorted({reason for t in timings if t.clocks for reason in t.clocks.slowdowns}),
    }
    low, high = min(t.speedup.value for t in timings), max(t.speedup.value for t in timings)
    _say(
        f"{problem:3d} {case:6s} {protocol:9s} {mode:6s} {row['reference_us']:8.1f} us  ratio {low:.3f} to {high:.3f}, "
        f"within 2%: {row['within_2_percent']}/{len(timings)}, faster {row['called_faster']}, "
        f"slower {row['called_slower']}"
    )
    return [row]


# -- company -----------------------------------------------------------------------------------------------------------


def company(bench: Bench, repeats: int) -> list[dict[str, Any]]:
    """The same candidate at every place of a row of ten, cold first; among compilers; and, with the reference against
    itself, while others' ranks come up on the same devices, which no lease of ours allows."""
    kit, other = bench.kit(), reference_candidate(catalogue.find(1))
    rows: list[dict[str, Any]] = []

    def note(where: str, evaluation: Evaluation) -> None:
        measured = evaluation.measurement
        assert measured is not None, evaluation.summary
        row: dict[str, Any] = {"where": where}
        for mode, timing in (("eager", measured.eager), ("device", measured.device)):
            if timing is not None:
                row[mode] = [round(v, 4) for v in _ratio(timing)]
        rows.append(row)
        _say(
            f"{where:24s} "
            + "  ".join(f"{m} {row[m][1]:.3f} [{row[m][0]:.3f}, {row[m][2]:.3f}]" for m in row if m != "where")
        )

    with bench.sandbox() as box:
        for place in range(1, 11):
            if place in (1, 2, 5, 9, 10):
                note(f"place {place} of ten", box.evaluate(bench.request(kit)))
            else:
                box.evaluate(bench.request(other))
        with _compilers():
            for _ in range(repeats):
                note("among compilers", box.evaluate(bench.request(kit)))
        with _new_ranks(bench):
            for candidate, name in ((kit, "among new ranks"), (other, "itself among new ranks")):
                for _ in range(repeats):
                    try:
                        evaluation = box.evaluate(bench.request(candidate))
                        refused = "" if evaluation.passed else evaluation.summary
                    except HarnessError as error:
                        refused = str(error)
                    if refused:  # part of the answer here: nobody promises a verdict
                        rows.append({"where": name, "refused": refused})
                        _say(f"{name:24s} {refused}")
                    else:
                        note(name, evaluation)
    return rows


def _ratio(timing: Timing) -> tuple[float, float, float]:
    return timing.speedup.low, timing.speedup.value, timing.speedup.high


@contextlib.contextmanager
def _compilers() -> Iterator[None]:
    """Half of the processors busy compiling, as when candidates are built ahead."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "busy.cpp"
        source.write_text(
            '#include <algorithm>\n#include <map>\n#include <regex>\n#include <string>\nstd::regex r("a");\n'
        )
        loop = f"while :; do g++ -O3 -c {source} -o /dev/null; done"
        count = max(1, len(os.sched_getaffinity(0)) // 2)
        busy = [subprocess.Popen(["sh", "-c", loop], start_new_session=True) for _ in range(count)]
        try:
            time.sleep(1.0)
            yield
        finally:
            for process in busy:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)
                process.wait()


@contextlib.contextmanager
def _new_ranks(bench: Bench) -> Iterator[None]:
    """Sets of ranks come up and are ended all the time on the devices that are in use. Raises HarnessError afterwards
    if they did not come up."""
    over, up, failed = threading.Event(), threading.Event(), list[HarnessError]()

    def churn() -> None:
        with contextlib.closing(bench.processes()) as processes:
            try:
                while not over.is_set():
                    ranks = processes.spawn("candidate")
                    processes.expect(ranks.ask("connect", {"limit_s": 120}, deadline_s=120), "connecting")
                    ranks.kill()
                    up.set()
            except HarnessError as error:
                failed.append(error)
                up.set()

    thread = threading.Thread(target=churn)
    thread.start()
    up.wait()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if failed:
        raise failed[0]


# -- references --------------------------------------------------------------------------------------------------------


def references(
    bench: Bench, numbers: list[int] | None, cases: list[str], seconds: float = math.inf
) -> list[dict[str, Any]]:
    """Each at each case; `default` means the problem's own default. A failure is a row of its own. None is begun after
    so many seconds."""
    rows: list[dict[str, Any]] = []
    over_at = time.monotonic() + seconds
    with bench.sandbox() as box:
        box.warm_up()
        for entry in catalogue.entries():
            if numbers and entry.number not in numbers:
                continue
            if time.monotonic() > over_at:
                _say(f"from problem {entry.number} on not reached")
                break
            for name in dict.fromkeys(entry.default if case == "default" else case for case in cases):
                try:
                    found = box.baseline(entry, catalogue.select_case(entry, name), bench.dtype)
                    row = found.model_dump() | {"fraction": found.fraction, "best_us": found.best_us}
                    share = "" if found.fraction is None else f"{found.fraction:6.1%} of {found.bound_by}"
                    device = f"{found.device.median_us:10.1f}" if found.device else "         -"
                    eager = f"{found.eager.median_us:10.1f}"
                    _say(
                        f"{entry.number:3} {entry.name[:40]:40} {name:8} {eager} {device} {share:20} "
                        f"{found.input_bytes / 1e6:8.1f} MB  error {found.error:.1e}  {found.seconds:5.1f} s"
                    )
                except (ProblemError, HarnessError) as error:
                    row = {"problem": entry.number, "name": entry.name, "case": name, "failed": str(error)}
                    _say(f"{entry.number:3} {entry.name[:40]:40} {name:8} {str(error)[:1000]}")
                rows.append(row)
    return rows


def start(bench: Bench, repeats: int) -> list[dict[str, Any]]:
    """Medians over `repeats` of the seconds of each part, the slowest rank's; nobody else has the devices."""
    rows: list[dict[str, Any]] = []
    with contextlib.closing(bench.processes()) as processes, processes.lease().hold():
        processes.reference()  # long-lived: what every later set finds on the devices
        for at_once in (1, 2):
            seen: list[dict[str, float]] = []
            for _ in range(repeats):
                began = time.monotonic()
                sets = [processes.spawn("candidate") for _ in range(at_once)]
                spawned = time.monotonic()
                for ranks in sets:
                    ranks.begin("connect", {"limit_s": 120})
                outcomes = [processes.expect(ranks.wait(120), "connecting") for ranks in sets]
                up = time.monotonic()
                for ranks in sets:
                    ranks.kill()
                parts = [reply["parts"] for outcome in outcomes for reply in outcome.replies]
                seen.append(
                    {"all": up - began, "fork": spawned - began}
                    | {name: max(part[name] for part in parts) for name in parts[0]}
                    | {"kill": time.monotonic() - up}
                )
            medians = {name: round(statistics.median(one[name] for one in seen), 3) for name in seen[0]}
            rows.append(
                {"name": ("one set", "two sets at once")[at_once - 1], "repeats": repeats, "slowest_rank_s": medians}
            )
            _say(f"{rows[-1]['name']}: " + ", ".join(f"{name} {value:.2f}" for name, value in medians.items()))
    return rows


# -- command line ------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m harness.benchmark", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", nargs="?", default="speed", choices=("speed", "aa", "company", "references", "start"))
    parser.add_argument("--platform", choices=("cpu", "cuda"), default=machine.default_platform())
    parser.add_argument("--world-size", type=int)
    parser.add_argument("--isolation", choices=("auto", "strict", "none"), default="auto")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-inline", action="store_true", help="speed: without load_inline, which takes a minute")
    parser.add_argument("--problems", default="1", help="aa, references: numbers, comma-separated, or all")
    parser.add_argument("--cases", default="pkb", help="aa, references: names, comma-separated")
    parser.add_argument("--seconds", type=float, default=math.inf, help="references: begin none after these")
    parser.add_argument("--protocols", default="ringsmith", help="aa: ringsmith, pkb")
    given = parser.parse_args()
    world_size = given.world_size or (2 if given.platform == "cpu" else min(4, len(machine.gpus())))
    try:
        bench = Bench(given.platform, world_size, given.isolation)
    except UsageError as error:
        parser.error(str(error))
    if given.suite == "speed":
        rows = speed(bench, given.repeats, not given.no_inline)
    elif given.suite == "aa":
        numbers = [int(number) for number in given.problems.split(",")]
        rows = aa(bench, numbers, given.cases.split(","), given.protocols.split(","), given.repeats)
    elif given.suite == "references":
        chosen = None if given.problems == "all" else [int(number) for number in given.problems.split(",")]
        rows = references(bench, chosen, given.cases.split(","), given.seconds)
    elif given.suite == "start":
        rows = start(bench, given.repeats)
    else:
        rows = company(bench, given.repeats)
    gpus = machine.gpus() if given.platform == "cuda" else ()
    print(json.dumps({
        "suite": given.suite,
        "platform": given.platform,
        "world_size": world_size,
        "isolation": given.isolation,
        "devices": [gpu.name for gpu in gpus] or [machine.cpu().model],
        "cores": machine.cpu().cores,
        "torch": machine.torch_version(),
        "python": python_platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
        "rows": rows,
    }))  # fmt: skip


def _say(text: str) -> None:
    print(re.sub(r"\s+$", "", text), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
