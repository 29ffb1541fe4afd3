"""Every cheating and every honest candidate through the harness (`scripts/integrity`, or `python -m tests.integrity`).

Prints a table on stdout, writes everything to `--out` as JSON, and ends with 1 if a verdict was not one of those
expected, the harness raised, or something was left over. Left-over files and GPU memory are those of the whole machine:
run it where nothing else runs.
"""

from __future__ import annotations

import argparse
import ctypes
import fnmatch
import json
import math
import os
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, get_args

from harness import lease, machine
from harness.errors import HarnessError
from harness.types import DType, Evaluation, Limits, PlatformName
from problems.spec import ProblemError
from tests.at_once import sandboxes, share
from tests.candidates import Example, folder
from tests.processes import descendants

_PR_SET_CHILD_SUBREAPER = 36
_SETTLE_S = 15.0
"""For drivers and dying processes to give back what they had."""
_GPU_SLACK_BYTES = 64 << 20
_FIRST_CALL_S = {"cpu": 0.0, "cuda": 8.0}
_SHARED = (Path("/dev/shm"), Path("/tmp"))
_EXPECTED_FILES = ("ringsmith-leases",)
_WITNESS = {"cpu": "p01_double_buffer_one_barrier", "cuda": "p01_*"}
"""The honest candidate whose speed-up is compared before and after the mixed evaluations."""


class Session:
    """One sandbox, or several on the same devices, and the rows that came out of them."""

    def __init__(self, options: argparse.Namespace, world_size: int, dtype: DType, at_once: int = 1) -> None:
        self.options, self.world_size, self.dtype, self.at_once = options, world_size, dtype, at_once
        # A first call on a GPU loads modules and meets all peers.
        first_s = max(options.deadline, _FIRST_CALL_S[options.platform])
        self.limits = Limits(load_s=max(5.0, first_s), first_call_s=first_s, call_s=options.deadline)
        self.rows: list[dict[str, Any]] = []

    def __enter__(self) -> Session:
        self.box = sandboxes(self.options.platform, self.world_size, self.limits, self.at_once)
        return self

    def __exit__(self, *_: object) -> None:
        self.box.close()

    def evaluate(self, example: Example, **changes: Any) -> dict[str, Any]:
        """Evaluate and note the row; a fault of the harness is noted as such."""
        request = example.request(self.options.platform, self.world_size, self.dtype, self.limits, **changes)
        began = time.monotonic()
        row: dict[str, Any] = {
            "name": example.name, "evil": example.evil, "rows": example.rows,
            "world_size": self.world_size, "dtype": self.dtype, "timing": request.timing,
            "expected": [str(verdict) for verdict in example.expected],
        }  # fmt: skip
        try:
            evaluation = self.box.evaluate(request)
            row |= _described(evaluation) | {"right": example.right(evaluation)}
        except ProblemError as error:  # the case does not fit this number of ranks
            row |= {"got": "skipped", "summary": str(error), "right": True}
        except HarnessError as error:
            row |= {"got": f"{type(error).__name__}!", "summary": str(error), "right": False}
        row |= {"seconds": round(time.monotonic() - began, 2)}
        self.rows.append(row)
        return row


def _described(evaluation: Evaluation) -> dict[str, Any]:
    measured = evaluation.measurement
    timing = (measured.device or measured.eager) if measured else None
    return {
        "got": str(evaluation.verdict),
        "stage": str(evaluation.stage),
        "fault": evaluation.fault,
        "summary": evaluation.summary,
        "speedup": timing.speedup.model_dump() if timing else None,
        "isolation": evaluation.environment.isolation,
    }


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # whatever escapes becomes a child of ours
    before = _machine(options)
    over_at = time.monotonic() + options.seconds
    evil = _chosen(folder("evil", options.platform), options.only)
    honest = _chosen(folder("honest", options.platform), options.only)
    if not (evil if options.mixed else evil or honest):
        raise SystemExit(f"no candidate is called {' or '.join(options.only)}")
    rows: list[dict[str, Any]] = []
    wanted = len(options.world_size) * len(options.dtype)
    wanted *= len(evil) * options.evil_repeats + len(honest) * options.repeats
    for world_size in options.world_size:
        for dtype in options.dtype:
            print(f"\n{options.platform}, {world_size} ranks, {dtype}", flush=True)
            with Session(options, world_size, dtype, options.at_once) as session:
                tasks = [partial(_evil, session, example, over_at) for example in evil * options.evil_repeats]
                share(session.box, [*tasks, *(partial(_honest, session, example, over_at) for example in honest)])
            rows += session.rows
    mixed = _mixed(options, evil, over_at) if options.mixed else None
    left = _left_over(options, before)
    wrong = [row for row in rows if not row["right"]]
    print(
        f"\n{len(rows)} evaluations, {len(wrong)} not as expected; {wanted - len(rows)} not reached; "
        f"left over: {left or 'nothing'}"
    )
    for row in wrong:
        print(f"  {row['name']} W={row['world_size']} {row['dtype']}: {row['got']}: {row['summary'][:160]}")
    if options.out:
        document = {
            "arguments": {name: value for name, value in vars(options).items() if name != "out"},
            "harness": machine.harness_version(), "rows": rows, "mixed": mixed, "left_over": left,
        }  # fmt: skip
        Path(options.out).write_text(json.dumps(document, indent=1), encoding="utf-8")
    return int(bool(wrong or left or (mixed and mixed["wrong"])))


def _evil(session: Session, example: Example, over_at: float) -> None:
    if time.monotonic() < over_at:
        _show(session.evaluate(example))


def _honest(session: Session, example: Example, over_at: float) -> None:
    """As often as asked for and there is time; one line for all of them."""
    every, rows = session.options.timed_every, []
    for i in range(session.options.repeats):
        if time.monotonic() < over_at:
            rows.append(session.evaluate(example, timing=every > 0 and i % every == 0, soak=session.options.soak))
    if not rows:
        return
    passed = sum(row["right"] for row in rows)
    # What is shown is a failure, if there was one.
    shown = min(rows, key=lambda row: row["right"])
    _show(shown | {"got": f"{shown['got']} {passed}/{len(rows)}", "seconds": round(sum(r["seconds"] for r in rows), 2)})


def _mixed(options: argparse.Namespace, evil: list[Example], over_at: float) -> dict[str, Any]:
    """Many evil evaluations in one sandbox, an honest one before and after them."""
    chance = random.Random(options.seed)
    named = options.witness or _WITNESS[options.platform]
    witness = next(iter(_chosen(folder("honest", options.platform), [named])), None)
    if witness is None:
        raise SystemExit(f"no honest candidate is called {named}")
    world_size, dtype = options.world_size[0], options.dtype[0]
    print(f"\n{options.mixed} mixed evaluations, {world_size} ranks, {dtype}", flush=True)
    with Session(options, world_size, dtype) as session:
        first = session.evaluate(witness, timing=True, case="pkb")
        children = len(descendants(os.getpid()))
        seen: list[dict[str, Any]] = []
        pool: list[Example] = []
        for i in range(options.mixed):
            if time.monotonic() > over_at:
                break
            if not pool:
                pool = chance.sample(evil, len(evil))  # each once before any twice
            seen.append(session.evaluate(pool.pop()))
            if not seen[-1]["right"]:
                _show(seen[-1])
            elif i % 20 == 19:
                print(f"  {i + 1} done", flush=True)
        last = session.evaluate(witness, timing=True, case="pkb")
        more = len(descendants(os.getpid())) - children
    for label, row in (("before", first), ("after", last)):
        print(f"  honest {witness.name} {label}: {row['got']} {_ratio(row)}")
    wrong = [row for row in (first, *seen, last) if not row["right"]]
    counts = Counter(row["got"] for row in seen)
    print(f"  {len(seen)}: {dict(counts)}; {len(wrong)} not as expected; {more:+d} processes in the open session")
    return {
        "seed": options.seed, "before": first, "after": last, "verdicts": counts, "wrong": wrong,
        "more_processes": more, "rows": seen,
    }  # fmt: skip


def _machine(options: argparse.Namespace) -> dict[str, Any]:
    """What must be the same afterwards."""
    return {
        "files": {str(path) for shared in _SHARED for path in shared.iterdir()},
        "gpu_bytes": {gpu.index: gpu.memory_used_bytes for gpu in machine.gpus()} if options.platform == "cuda" else {},
    }


def _left_over(options: argparse.Namespace, before: dict[str, Any]) -> dict[str, Any]:
    """Processes, files in shared folders, GPU memory and leases that are still there; empty if nothing is."""
    deadline = time.monotonic() + _SETTLE_S
    while True:
        _reap()
        left = _difference(options, before)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.2)


def _difference(options: argparse.Namespace, before: dict[str, Any]) -> dict[str, Any]:
    now = _machine(options)
    files = sorted(file for file in now["files"] - before["files"] if not _others(Path(file).name))
    over = {index: used - before["gpu_bytes"].get(index, 0) for index, used in now["gpu_bytes"].items()}
    devices = [0] if options.platform == "cpu" else list(over)
    held = sorted(set(devices) - set(lease.free_devices(options.platform, devices)))
    found = {
        "processes": [_command(pid) for pid in descendants(os.getpid())],
        "files": files,
        "gpu_bytes": {index: used for index, used in over.items() if used > _GPU_SLACK_BYTES},
        "leases": held,
    }
    return {name: value for name, value in found.items() if value}


def _others(name: str) -> bool:
    """A file that is no left-over: the leases', or the scratch folder of a session of another living process."""
    owner = re.match(r"ringsmith-(\d+)-", name)
    living = owner and int(owner[1]) != os.getpid() and Path("/proc", owner[1]).exists()
    return name in _EXPECTED_FILES or bool(living)


def _reap() -> None:
    """End what has become a child of ours and is dead already."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _command(pid: int) -> str:
    try:
        return f"{pid} {Path(f'/proc/{pid}/cmdline').read_bytes().replace(bytes(1), b' ').decode()[:80]}"
    except OSError:
        return str(pid)


def _chosen(examples: Iterable[Example], patterns: list[str]) -> list[Example]:
    return [e for e in examples if not patterns or any(fnmatch.fnmatch(e.name, pattern) for pattern in patterns)]


def _ratio(row: dict[str, Any]) -> str:
    speedup = row.get("speedup")
    return f"{speedup['value']:.2f}x [{speedup['low']:.2f}, {speedup['high']:.2f}]" if speedup else ""


def _show(row: dict[str, Any]) -> None:
    mark = " " if row["right"] else "!"
    expected = "/".join(row["expected"])
    print(
        f"{mark} {row['name']:38} {','.join(row['rows']):12} {expected:34} {row['got']:16} "
        f"{row.get('stage', ''):12} {row['seconds']:6.1f} s {_ratio(row)}",
        flush=True,
    )
    if not row["right"]:
        print(f"    {row['summary'][:300]}", flush=True)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/integrity", description=__doc__.splitlines()[0])
    parser.add_argument("--platform", choices=get_args(PlatformName), default="cpu")
    parser.add_argument("--world-size", type=int, nargs="+", default=None, help="default: 2 on cpu, 4 on cuda")
    parser.add_argument(
        "--dtype", choices=get_args(DType), nargs="+", default=None, help="default: float32; cuda bfloat16"
    )
    parser.add_argument("--repeats", type=int, default=1, help="evaluations of each honest candidate")
    parser.add_argument("--timed-every", type=int, default=1, help="time every n-th of these only; 0: none")
    parser.add_argument(
        "--soak", type=int, default=1, help="rounds of correctness and stress in each honest evaluation"
    )
    parser.add_argument("--evil-repeats", type=int, default=1, help="evaluations of each cheating candidate")
    parser.add_argument("--at-once", type=int, default=1, help="sandboxes that share the devices; mixed ones have one")
    parser.add_argument("--mixed", type=int, default=0, help="evil evaluations in one sandbox, then an honest one")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no further evaluation after these")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the mixed evaluations")
    parser.add_argument("--witness", default="", help="honest candidate before and after the mixed ones")
    parser.add_argument("--deadline", type=float, default=5.0, help="seconds without progress, of candidates that hang")
    parser.add_argument("--only", nargs="+", default=[], help="names, with * and ?, of the candidates to run")
    parser.add_argument("--out", default="", help="file for everything as JSON")
    options = parser.parse_args(arguments)
    options.world_size = options.world_size or ([2] if options.platform == "cpu" else [4])
    options.dtype = options.dtype or (["float32"] if options.platform == "cpu" else ["bfloat16"])
    return options


if __name__ == "__main__":
    sys.exit(main())
