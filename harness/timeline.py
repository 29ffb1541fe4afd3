"""From ranks' traces to figures: what ran when on each device, and what each name costs. For the supervisor: no torch.

Everything in a trace was written by an untrusted rank: what is no number raises TypeError, ValueError or OverflowError
here, names come out as one line, and no work is more than the trace is long.
"""

from __future__ import annotations

import bisect
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any

from harness.profile_types import CallProfile

CALL = "solution"
"""Name of each call's span in a trace."""
_ON_DEVICE = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "memset"}
_ON_HOST = {"cpu_op", "user_annotation", "cuda_runtime", "cuda_driver"}
_NOT_SHOWN = {CALL, "cudaDeviceSynchronize"}
TOP = 12
_MAX_NAME = 1000
_MAX_CALLS = 100
_MOST = 1e18
"""Microseconds since 1970 are 1.8e15."""

Span = tuple[float, float]


@dataclass(frozen=True)
class Launch:
    """One kernel, copy or memset; times in microseconds of the host's clock, which ranks share."""

    name: str
    kind: str
    start: float
    end: float
    correlation: int
    args: dict[str, Any]

    @property
    def between_ranks(self) -> bool:
        """Whether it is a copy from one GPU to another."""
        return "PtoP" in self.name or self.args.get("fromDevice") != self.args.get("toDevice")


@dataclass
class Call:
    """One call of `solution` in a rank's trace."""

    start: float
    end: float
    launches: list[Launch] = field(default_factory=list)


@dataclass
class RankTrace:
    calls: list[Call]
    host_self_us: dict[str, tuple[float, int]]
    """By name: time without callees and how often, in all calls."""

    def top(self) -> tuple[CallProfile, ...]:
        """What takes most, per call: on the device first."""
        times = len(self.calls) or 1
        rows: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
        for call in self.calls:
            for launch in call.launches:
                row = rows[launch.name]
                row[0] += launch.end - launch.start
                row[2] += 1
        for name, (host_us, ran) in self.host_self_us.items():
            row = rows[name]
            row[1] += host_us
            row[2] += 0 if row[0] else ran
        shown = [
            CallProfile(name=name[:300], device_us=device / times, host_us=host / times, calls=calls / times)
            for name, (device, host, calls) in rows.items()
        ]
        return tuple(sorted(shown, key=lambda row: (row.device_us, row.host_us), reverse=True)[:TOP])


def read(events: Sequence[dict[str, Any]]) -> RankTrace:
    """One rank's calls."""
    spans = sorted(_span(e) for e in events if e.get("cat") == "user_annotation" and e.get("name") == CALL)
    calls: list[Call] = []
    for start, end in spans:
        if not calls or start >= calls[-1].end:  # a candidate's own annotation of that name, inside a call, is none
            calls.append(Call(start, end))
    if len(calls) > _MAX_CALLS:
        raise ValueError(f"{len(calls)} calls in one trace")
    starts = [call.start for call in calls]
    host: list[tuple[Any, float, float, str]] = []
    launched: dict[int, Call] = {}
    for event in events:
        if event.get("cat") in _ON_HOST and event.get("ph") == "X":
            start, end = _span(event)
            at = bisect.bisect_right(starts, start) - 1
            if at >= 0 and start <= calls[at].end:
                call = calls[at]
                host.append(((str(event.get("pid")), str(event.get("tid"))), start, end, _name(event)))
                if (correlation := _correlation(event)) >= 0:
                    launched[correlation] = call
    for event in events:
        # By what launched it: the harness's own kernels, launched before a call, still run when it begins.
        kind = _ON_DEVICE.get(str(event.get("cat")))
        if kind is not None and (owner := launched.get(_correlation(event))) is not None:
            args = dict(event["args"])
            owner.launches.append(Launch(_name(event), kind, *_span(event), _correlation(event), args))
    for call in calls:
        call.launches.sort(key=lambda launch: launch.start)
    return RankTrace(calls, _self_times(host))


def number(value: Any) -> float:
    """What an untrusted rank wrote, as a number. Raises TypeError, ValueError or OverflowError if it is none."""
    found = float(value)
    if not -_MOST <= found <= _MOST:  # neither is NaN
        raise ValueError(f"{found} is out of range")
    return found


def shape(launch: Launch, name: str) -> tuple[int, ...]:
    """Its `grid` or `block`."""
    return tuple(int(number(n)) for n in list(launch.args.get(name, ()))[:3])


def _name(event: dict[str, Any]) -> str:
    # It goes into text and into JSON: one line, and no half of a surrogate pair.
    return " ".join(str(event["name"])[:_MAX_NAME].encode(errors="replace").decode().split())


def _span(event: dict[str, Any]) -> Span:
    start = number(event["ts"])
    return start, start + max(0.0, number(event.get("dur", 0.0)))


def _correlation(event: dict[str, Any]) -> int:
    """Of a launch on the host and of what it launched; -1 for none."""
    args = event.get("args")
    return int(number(args.get("correlation", -1))) if isinstance(args, dict) else -1


def _self_times(host: list[tuple[Any, float, float, str]]) -> dict[str, tuple[float, int]]:
    found: dict[str, tuple[float, int]] = {}
    threads: dict[Any, list[tuple[float, float, str]]] = defaultdict(list)
    for thread, start, end, name in host:
        threads[thread].append((start, end, name))
    for spans in threads.values():
        spans.sort(key=lambda span: (span[0], -span[1]))
        own = [end - start for start, end, _ in spans]
        open_: list[int] = []
        for i, (start, end, _) in enumerate(spans):
            while open_ and spans[open_[-1]][1] <= start:
                open_.pop()
            if open_:
                own[open_[-1]] -= min(end, spans[open_[-1]][1]) - start
            open_.append(i)
        for (_, _, name), us in zip(spans, own, strict=True):
            if name not in _NOT_SHOWN:
                total, times = found.get(name, (0.0, 0))
                found[name] = (total + max(us, 0.0), times + 1)
    return found


# -- one rank ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shares:
    """Medians over a rank's calls, in microseconds; see `RankProfile`."""

    span_us: float = 0.0
    idle_us: float = 0.0
    communication_us: float = 0.0
    computation_us: float = 0.0
    both_us: float = 0.0


def shares(trace: RankTrace, communicates: Callable[[Launch], bool], computes: Callable[[Launch], bool]) -> Shares:
    rows: list[tuple[float, ...]] = []
    for call in trace.calls:
        if not call.launches:
            continue
        first, last = call.launches[0].start, max(launch.end for launch in call.launches)
        moving = _union((x.start, x.end) for x in call.launches if communicates(x))
        computing = _union((x.start, x.end) for x in call.launches if computes(x))
        busy, a, b = _length(_union([*moving, *computing])), _length(moving), _length(computing)
        rows.append((last - first, last - first - busy, a, b, a + b - busy))
    return Shares(*(median(column) for column in zip(*rows, strict=True))) if rows else Shares()


def _union(spans: Iterable[Span]) -> list[Span]:
    merged: list[list[float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return [(start, end) for start, end in merged]


def _length(spans: Iterable[Span]) -> float:
    return sum(end - start for start, end in spans)


# -- all ranks ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kernel:
    """What has one name and grid, on all ranks."""

    example: Launch
    calls: float
    per_rank_us: tuple[float, ...]
    """Median time of all of them in one call, by rank; 0 where it does not run."""
    streams: tuple[int, ...]
    copied_bytes: int = 0
    """Of one copy, the mean."""

    @property
    def fastest_us(self) -> float:
        """Of the ranks on which it runs."""
        return min((us for us in self.per_rank_us if us > 0), default=0.0)


def kernels(traces: Sequence[RankTrace]) -> list[Kernel]:
    """Longest first."""
    found: dict[tuple[str, str], list[dict[int, list[float]]]] = {}
    examples: dict[tuple[str, str], Launch] = {}
    streams: dict[tuple[str, str], set[int]] = defaultdict(set)
    copied: dict[tuple[str, str], list[float]] = defaultdict(list)
    for rank, trace in enumerate(traces):
        for index, call in enumerate(trace.calls):
            for launch in call.launches:
                key = (launch.name, str(shape(launch, "grid")))
                examples.setdefault(key, launch)
                streams[key].add(int(number(launch.args.get("stream", 0))))
                if launch.kind == "copy":
                    copied[key].append(number(launch.args.get("bytes", 0)))
                ranks = found.setdefault(key, [defaultdict(list) for _ in traces])
                ranks[rank][index].append(launch.end - launch.start)
    rows = []
    for key, ranks in found.items():
        per_rank = tuple(
            median(sum(by_call.get(index, [])) for index in range(len(trace.calls))) if trace.calls else 0.0
            for by_call, trace in zip(ranks, traces, strict=True)
        )
        calls = mean(
            sum(map(len, by_call.values())) / (len(trace.calls) or 1)
            for by_call, trace in zip(ranks, traces, strict=True)
        )
        size = round(mean(copied[key])) if copied[key] else 0
        rows.append(Kernel(examples[key], calls, per_rank, tuple(sorted(streams[key])), size))
    return sorted(rows, key=lambda row: mean(row.per_rank_us), reverse=True)


def base_name(name: str) -> str:
    """Of a kernel, without return type, namespaces, template arguments and parameters: `void a::f<int>(float*)` is `f`.
    The mangled name of the same function gives the same."""
    if name.startswith("_Z"):
        return _mangled_base(name)
    words = _without_arguments(name, templates=False).split()
    return words[-1].rsplit("::", 1)[-1] if words else name


def short_name(name: str) -> str:
    """A demangled name without what it returns and takes: `void (anonymous namespace)::f<int>(float*)` is `f<int>`."""
    return _without_arguments(name, templates=True).removeprefix("void ") or name


def _without_arguments(name: str, *, templates: bool) -> str:
    name = name.replace("(anonymous namespace)::", "")
    angles, rounds, kept = 0, 0, []
    for letter in name:
        if letter == "(" and angles == 0:
            break
        # Within parentheses `<` and `>` may be operators: `f<(bool)(4>2)>`.
        rounds += (letter == "(") - (letter == ")")
        angles += (letter == "<" and rounds == 0) - (letter == ">" and rounds == 0)
        if templates or (angles == 0 and letter != ">"):
            kept.append(letter)
    return "".join(kept).strip()


def _mangled_base(name: str) -> str:
    rest, found = name[2:].lstrip("NLK"), ""
    while match := re.match(r"L?(\d+)", rest):
        size = int(match[1])
        found = rest[match.end() : match.end() + size]
        rest = rest[match.end() + size :]
    return found or name
