"""Makes a Profile of a candidate whose ranks are up and whose output was right. In the supervisor: no torch."""

from __future__ import annotations

import math
import secrets
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any

from harness import calibration, clocks, counters, hints, machine_code, roofline, timeline
from harness.errors import HarnessError
from harness.pair import FailedError, Pair
from harness.profile_types import KernelCode, KernelProfile, LinkTraffic, Profile, RankProfile
from harness.timeline import Launch, base_name, number
from harness.traces import LargeTraceError, merge_traces, read_trace
from harness.types import Finding, Mechanism, Verdict
from problems.spec import Work

_TRACED_CALLS = 5
_REPEATED_CALLS = 20
_COUNTED_CALLS = 5
_MAX_KERNELS = 100
_PROFILER_S = 30.0
"""For starting and writing the trace: torch's profiler imports its compiler, seconds on a busy machine."""
_TORCHS = ("one_shot_all_reduce", "two_shot_all_reduce", "barrier_kernel", "put_signal", "wait_signal", "multimem_")
"""Of torch.distributed._symmetric_memory."""


_FORGED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What reading raises where it is no profile: the ranks wrote all of it."""


class Profiler:
    def __init__(self, pair: Pair, work: Work, folder: Path) -> None:
        self._pair, self._work, self._folder = pair, work, folder
        self._cuda = pair.request.platform == "cuda"
        self._limits = pair.request.limits
        self._notes: list[str] = []
        self._seconds: dict[str, float] = {}
        self._ended = False
        """Whether the ranks have failed under counters: nothing more can be asked of them."""

    def make(self, kernel: str = "") -> Profile:
        """`kernel`: part of the name of one whose hardware counters are wanted as well. Raises FailedError with what a
        rank did wrong, and HarnessError if the trace cannot be written."""
        with self._part("trace"):
            traces, merged = self._trace()
        try:
            return self._profile(kernel, traces, merged)
        except _FORGED:
            raise FailedError(Verdict.integrity, "a rank reported a profile that is none") from None

    def _profile(self, kernel: str, traces: list[timeline.RankTrace], merged: str) -> Profile:
        request = self._pair.request
        with ThreadPoolExecutor(1) as beside:  # a second of disassembling
            reading = beside.submit(self._machine_code)
            with self._part("repeat"):
                repeated, nvml = self._repeat()
            counted = self._count(counters.CALL_SETS, _COUNTED_CALLS, by_kernel=False) if self._cuda else []
            code = reading.result()

        def communicates(launch: Launch) -> bool:
            return _communicates(launch, code)

        def computes(launch: Launch) -> bool:
            known = code.get(base_name(launch.name))
            return not communicates(launch) or (known is not None and known.tensor > 0)

        rows = timeline.kernels(traces)
        kernels = [_kernel(row, code, communicates(row.example), computes(row.example)) for row in rows]
        kernels = kernels[:_MAX_KERNELS]
        if kernel:
            kernels = self._count_kernel(kernel, kernels, traces)
        ranks = []
        for rank, trace in enumerate(traces):
            seconds = _positive(repeated[rank]["seconds"])
            waiting = sum(
                max(0.0, row.per_rank_us[rank] - row.fastest_us) for row in rows if communicates(row.example)
            )  # fmt: skip
            ranks.append(
                RankProfile(
                    rank=rank, iteration_us=seconds / _REPEATED_CALLS * 1e6, top=trace.top(),
                    waiting_us=waiting,
                    **vars(timeline.shares(trace, communicates, computes)), **_host(repeated[rank], len(traces)),
                    **_hardware(counted[rank] if counted else [], nvml[rank] if nvml else None),
                )
            )  # fmt: skip
        with self._part("write"):
            trace_path = self._write(merged)
        profile = Profile(
            candidate=request.candidate.hash,
            dtype=request.dtype,
            iterations=_TRACED_CALLS,
            ranks=tuple(ranks),
            trace=str(trace_path),
            kernels=tuple(kernels),
            mechanisms=self._mechanisms(ranks, kernels),
            limits_us=self._least(),
            ideal_link_bytes=(float(self._work.link_out_bytes), float(self._work.link_in_bytes)),
            ideal_hbm_bytes=float(self._work.hbm_bytes),
            notes=tuple(self._notes),
            seconds={name: round(seconds, 3) for name, seconds in self._seconds.items()},
        )
        return profile.model_copy(update={"hints": hints.hints(profile)})

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _ask(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        return self._pair.ask(
            "profile", message, self._limits.seconds_of_first_call(self._pair.candidate.world_size) + _PROFILER_S
        )

    def _trace(self) -> tuple[list[timeline.RankTrace], str]:
        """What ran when on each rank, and the trace of all ranks."""
        candidate = self._pair.candidate
        out = candidate.scratch / "out"
        self._ask({"way": "trace", "iterations": _TRACED_CALLS, "folder": str(out)})
        traces: list[timeline.RankTrace] = []

        def read() -> Iterator[list[dict[str, Any]]]:
            for rank in range(candidate.world_size):
                events = read_trace(out / f"trace.{rank}.json")
                traces.append(timeline.read(events))
                yield events
                del events  # before the next rank's are read

        try:
            return traces, merge_traces(read())
        except LargeTraceError as large:
            raise _too_large(large) from None
        except (OSError, *_FORGED):
            raise FailedError(Verdict.integrity, "a rank reported a profile that is none") from None

    def _write(self, merged: str) -> Path:
        path = self._folder / f"{self._pair.request.candidate.hash}-{secrets.token_hex(3)}.trace.json"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path.write_text(merged, encoding="utf-8")
        except OSError as error:
            raise HarnessError(f"cannot write {path}: {error.strerror}") from None
        return path

    def _machine_code(self) -> dict[str, KernelCode]:
        if not self._cuda:
            return {}
        with self._part("machine code, beside"):
            try:
                return machine_code.kernels(self._pair.candidate.scratch / "cache")
            except machine_code.NoDisassemblerError as missing:
                self._notes.append(str(missing))
                return {}

    def _repeat(self) -> tuple[list[dict[str, Any]], list[clocks.LinkBytes]]:
        """Replies, and what NVML saw of each rank's links in one call."""
        if not self._cuda:
            return self._ask({"way": "repeat", "iterations": _REPEATED_CALLS}), []
        nvml = clocks.Clocks(self._pair.box.lease().devices)
        before = nvml.link_bytes()
        replies = self._ask({"way": "repeat", "iterations": _REPEATED_CALLS})
        after = nvml.link_bytes()
        if len(before) != len(replies) or len(after) != len(replies):
            self._notes.append("NVML does not count bytes over NVLink here")
            return replies, []
        return replies, [
            clocks.LinkBytes(*((b - a) // _REPEATED_CALLS for a, b in zip(old, new, strict=True)))
            for old, new in zip(before, after, strict=True)
        ]

    def _count(
        self, sets: tuple[tuple[str, ...], ...], iterations: int, *, by_kernel: bool
    ) -> list[list[list[dict[str, float]]]]:
        """By rank and set, what was counted in each range; empty if that cannot be had, which is noted."""
        if self._ended:
            return []
        scratch = self._pair.candidate.scratch
        with self._part("counters of kernels" if by_kernel else "counters"):
            try:
                library = scratch / "exchange" / "counters.so"
                if not library.exists():
                    shutil.copyfile(counters.library(), library)
                    library.chmod(0o644)
                replies = self._ask(
                    {"way": "count", "library": str(library), "sets": [list(names) for names in sets],
                     "iterations": iterations, "by_kernel": by_kernel}
                )  # fmt: skip
            except (counters.CountersError, OSError) as error:
                self._notes.append(f"no hardware counters: {error}")
                return []
            except FailedError as failed:
                self._notes.append(
                    "no counters of single kernels: one after the other they do not come to an end, so one of them "
                    f"waits for another that is launched later or on another stream ({failed.summary})"
                    if by_kernel
                    else f"no hardware counters: calls under them failed ({failed.summary})"
                )
                self._ended = True
                return []
        refused = [" ".join(ascii(reply["refused"])[1:300].split()) for reply in replies if "refused" in reply]
        if refused:
            self._notes.append(f"no hardware counters: {refused[0]}")
            return []
        return [
            [[{str(k): _counted(v) for k, v in row.items()} for row in rows] for rows in reply["counted"]]
            for reply in replies
        ]

    def _count_kernel(
        self, wanted: str, kernels: list[KernelProfile], traces: list[timeline.RankTrace]
    ) -> list[KernelProfile]:
        """The kernels, those whose name has `wanted` with the counters of their last launch in a call."""
        call = traces[0].calls[-1] if traces[0].calls else timeline.Call(0, 0)
        order = [x for x in sorted(call.launches, key=lambda x: x.correlation) if x.kind == "kernel"]
        at = max((i for i, launch in enumerate(order) if wanted in launch.name), default=None)
        if not self._cuda or at is None:
            names = ", ".join(sorted({base_name(k.name) for k in kernels if not k.copied_bytes})) or "none ran"
            self._notes.append(f"no kernel's name has {wanted!r}; there are: {names}" if self._cuda else
                               "there are no hardware counters on cpu")  # fmt: skip
            return kernels
        counted = self._count(counters.KERNEL_SETS, 1, by_kernel=True)
        if not counted:
            return kernels
        lengths = {len(rows) for rank in counted for rows in rank}
        if lengths != {len(order)}:
            self._notes.append(
                f"the counters saw {' or '.join(map(str, sorted(lengths)))} kernels in a call and the trace "
                f"{len(order)}: which is which cannot be told"
            )
            return kernels
        found = {name: mean(rank[i][at][name] for rank in counted) for i, names in enumerate(counters.KERNEL_SETS)
                 for name in names}  # fmt: skip
        name, grid = order[at].name[:300], timeline.shape(order[at], "grid")
        return [k.model_copy(update={"counters": found}) if (k.name, k.grid) == (name, grid) else k for k in kernels]

    def _least(self) -> dict[str, float]:
        if self._work == Work():
            return {}
        request = self._pair.request
        names = self._pair.box.platform.device_names()
        stored = calibration.load(request.platform, names)
        peaks = stored.peaks(request.world_size) if stored else roofline.datasheet(names[0])
        if peaks is None:
            return {}
        found = roofline.terms(self._work, peaks, request.dtype)
        return {name: found[name] for name in ("FLOPs", "HBM", "link in", "link out")}

    def _mechanisms(self, ranks: list[RankProfile], kernels: list[KernelProfile]) -> tuple[Mechanism, ...]:
        found: list[Mechanism] = []
        if not self._cuda:
            if any(size for rank in ranks for peer, size in enumerate(rank.shared_bytes) if peer != rank.rank):
                found.append("shared memory")
            return (*found, "gloo") if self._pair.uses_collectives else tuple(found)
        copied = sum(k.copied_bytes * k.calls for k in kernels if k.copied_bytes and k.communicates)
        if any(k.name.startswith("nccl") for k in kernels):
            found.append("NCCL")
        if copied:
            found.append("copy engine")
        links = [rank.link for rank in ranks if rank.link]
        moved = max((max(link.sent_bytes, link.received_bytes) for link in links), default=None)
        own = [k for k in kernels if not k.copied_bytes and not k.name.startswith("nccl")]
        signals = any(k.communicates for k in own)
        by_kernels = signals if moved is None or found == ["NCCL"] else moved > 1.05 * copied + 4096 and own != []
        if (by_kernels and "NCCL" not in found) or (by_kernels and signals):
            tma = [k for k in own if k.code is not None and k.code.bulk_copies]
            found.append("TMA" if any(k.communicates for k in tma) or (tma and not signals) else "SM loads and stores")
        if any(k.code is not None and k.code.multicast for k in own):
            found.append("NVLS")
        return tuple(found)

    @contextmanager
    def _part(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.monotonic() - began


def _too_large(large: LargeTraceError) -> FailedError:
    failed = FailedError(Verdict.runtime_error, f"no profile: a rank's trace of {_TRACED_CALLS} calls has {large}")
    text = "a call has too many launches and operators to be profiled: take a smaller case, or fewer of them"
    failed.findings = (Finding(cause="trace too large", text=text, evidence=""),)
    return failed


def _communicates(launch: Launch, code: dict[str, KernelCode]) -> bool:
    if launch.kind == "copy":
        return launch.between_ranks
    if launch.name.startswith("nccl") or any(part in launch.name for part in _TORCHS):
        return True
    known = code.get(base_name(launch.name))
    return known is not None and (known.signals > 0 or known.multicast > 0)


def _kernel(row: timeline.Kernel, code: dict[str, KernelCode], communicates: bool, computes: bool) -> KernelProfile:
    args = row.example.args
    occupancy = args.get("est. achieved occupancy %")
    return KernelProfile(
        name=row.example.name[:300],
        calls=row.calls,
        device_us=mean(row.per_rank_us),
        fastest_us=row.fastest_us,
        communicates=communicates,
        computes=computes,
        grid=timeline.shape(row.example, "grid"),
        block=timeline.shape(row.example, "block"),
        registers=int(number(args.get("registers per thread", 0))),
        shared_memory_bytes=int(number(args.get("shared memory", 0))),
        streams=row.streams,
        occupancy=None if occupancy is None else number(occupancy) / 100,
        copied_bytes=row.copied_bytes,
        code=code.get(base_name(row.example.name)) if row.example.kind == "kernel" else None,
    )


def _host(reply: dict[str, Any], world_size: int) -> dict[str, Any]:
    if "touched" not in reply:
        return {}
    touched = {int(rank): number(size) for rank, size in reply["touched"]}
    return {
        "shared_bytes": tuple(touched.get(rank, 0.0) for rank in range(world_size)),
        "cpu_share": number(reply["cpu_s"]) / _positive(reply["seconds"]),
    }


def _positive(value: Any) -> float:
    if (found := number(value)) <= 0:
        raise ValueError(f"{found} seconds")
    return found


def _counted(value: Any) -> float:
    """A share of no cycles at all is NaN."""
    return 0.0 if isinstance(value, float) and math.isnan(value) else number(value)


def _hardware(counted: list[list[dict[str, float]]], nvml: clocks.LinkBytes | None) -> dict[str, Any]:
    """Figures of one rank for one call, of hardware counters if there are any, else of NVML."""
    if not counted:
        if nvml is None:
            return {}
        link = LinkTraffic(sent_bytes=nvml.sent, received_bytes=nvml.received, wire_bytes=nvml.wire)
        return {"link": link}
    values = {name: value for rows in counted for name, value in rows[0].items()}
    per_call = {name: value / _COUNTED_CALLS for name, value in values.items() if name.endswith(".sum")}
    wire, sent, received, requests, responses = (
        per_call[counters.LINK[i]] for i in (0, 2, 3, 4, 5)
    )  # fmt: skip
    # Requests that carry nothing (reads) and answers that carry nothing (to writes) are one packet of header each.
    pushed = _share(requests, responses)
    link = LinkTraffic(sent_bytes=sent, received_bytes=received, wire_bytes=wire, pushed=pushed)
    reads, writes = (per_call[name] for name in counters.MEMORY)
    tensor, warps = values[counters.SM[0]], values[counters.SM[1]]
    return {
        "link": link, "hbm_read_bytes": reads, "hbm_written_bytes": writes,
        "tensor_active": tensor / 100, "warps_active": warps / 100,
    }  # fmt: skip


def _share(requests: float, responses: float) -> float | None:
    """Of the data sent, the part in requests: on H200, header bytes of the other sort are a sixteenth at most."""
    total = requests + responses
    return requests / total if total > 0 else None
