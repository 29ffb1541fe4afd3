"""A profile as a screen of text: the lines from which the next edit follows first."""

from __future__ import annotations

from collections.abc import Sequence

from harness.hints import megabytes, short_name
from harness.profile_types import KernelCode, KernelProfile, LinkTraffic, Profile, RankProfile
from harness.types import Measurement, Protocol, Timing
from harness.wording import ratio_text, time_text

_KERNELS = 8
_RANKS = 8
_HOST_ROWS = 5
_STREAMS = 4
_BALANCED = (0.15, 0.85)


def profile_text(profile: Profile, measurement: Measurement | None = None) -> str:
    """`measurement`: what `run_benchmark` measured of the same candidate, if it did."""
    device = any(rank.link for rank in profile.ranks) or any(rank.span_us for rank in profile.ranks)
    lines = [f"{profile.iterations} traced calls, each alone, begun by all ranks together"]
    lines += _times(measurement) if measurement else []
    lines += _limits(profile, measurement)
    lines.append(f"moved by: {', '.join(profile.mechanisms) or 'nothing between ranks'}{_direction(profile.ranks)}")
    lines += _links(profile)
    lines += _memory(profile)
    lines += _device_ranks(profile.ranks) if device else _host_ranks(profile)
    lines += _kernels(profile.kernels) if device else _top(profile.ranks)
    lines += _counters(profile.kernels)
    for i, hint in enumerate(profile.hints, 1):
        lines += [f"hint {i}: {hint.text}", f"  because: {hint.evidence}"]
    lines += [f"note: {note}" for note in profile.notes]
    return "\n".join(lines)


def _times(measurement: Measurement) -> list[str]:
    lines = []
    for name, timing in (("device", measurement.device), ("eager", measurement.eager)):
        if timing is not None:
            lines.append(f"{name}: {_timing(timing, measurement.protocol)}")
    if (clocks := measurement.eager.clocks) is not None:
        slow = f", held down: {', '.join(clocks.slowdowns)}" if clocks.slowdowns else ""
        lines.append(f"clocks while it was timed: SMs {clocks.sm_mhz_low} to {clocks.sm_mhz_high} MHz{slow}")
    return lines


def _timing(timing: Timing, protocol: Protocol) -> str:
    one, other = timing.candidate, timing.reference
    host = f", host {one.host_us:.1f} us to issue a call" if one.host_us else ""
    return (
        f"{time_text(one.median_us, protocol)} (p10 {one.p10_us:.1f}, p90 {one.p90_us:.1f}), "
        f"reference {time_text(other.median_us, protocol)}: {ratio_text(timing.speedup)}; "
        f"ranks {one.skew_us:.1f} us apart{host}"
    )


def _limits(profile: Profile, measurement: Measurement | None) -> list[str]:
    needed = {name: us for name, us in profile.limits_us.items() if us > 0}
    if not needed:
        return []
    bound = max(needed, key=lambda name: needed[name])
    if measurement is not None:
        taken, what = (measurement.device or measurement.eager).candidate.median_us, "of the time measured"
    else:
        taken = max(rank.span_us or rank.iteration_us for rank in profile.ranks)
        what = "of the time here" if any(rank.span_us for rank in profile.ranks) else "of the time back to back here"
    listed = ", ".join(f"{name} {us:.1f}" for name, us in needed.items())
    return [f"the work needs at least (us): {listed}; bound by {bound}, which is {needed[bound] / taken:.0%} {what}"]


def _direction(ranks: Sequence[RankProfile]) -> str:
    shares = [rank.link.pushed for rank in ranks if rank.link and rank.link.pushed is not None]
    if not shares or max(rank.link.sent_bytes for rank in ranks if rank.link) < 4096:
        return ""
    share = sum(shares) / len(shares)
    if share < _BALANCED[0]:
        return "; pull (ranks read from peers)"
    if share > _BALANCED[1]:
        return "; push (ranks write to peers)"
    return f"; {share:.0%} pushed, {1 - share:.0%} pulled"


def _links(profile: Profile) -> list[str]:
    links = [(rank.rank, rank.link) for rank in profile.ranks if rank.link]
    if not links:
        return []
    sent, received = profile.ideal_link_bytes
    ideal = f" (ideal at most {megabytes(sent)} sent, {megabytes(received)} received)" if sent or received else ""
    moved = [max(link.sent_bytes, link.received_bytes) for _, link in links]
    if max(moved) <= 1.02 * min(moved) + 1024:
        return [f"NVLink data a rank and call: {_traffic(links[0][1])}{ideal}"]
    rows = [f"  rank {rank}: {_traffic(link)}" for rank, link in links[:_RANKS]]
    return [f"NVLink data a call{ideal}:", *rows]


def _traffic(link: LinkTraffic) -> str:
    times = f", {link.wire_bytes / link.sent_bytes:.2f}x of it on the wire" if link.sent_bytes > 4096 else ""
    return f"sent {megabytes(link.sent_bytes)}, received {megabytes(link.received_bytes)}{times}"


def _memory(profile: Profile) -> list[str]:
    known = [r for r in profile.ranks if r.hbm_read_bytes is not None]
    if not known:
        return []
    most = max(known, key=lambda r: (r.hbm_read_bytes or 0.0) + (r.hbm_written_bytes or 0.0))
    if max((most.hbm_read_bytes or 0.0) + (most.hbm_written_bytes or 0.0), profile.ideal_hbm_bytes) < 1e6:
        return []
    ideal = f" (at least {megabytes(profile.ideal_hbm_bytes)} together)" if profile.ideal_hbm_bytes else ""
    return [
        f"HBM a call, rank {most.rank}: read {megabytes(most.hbm_read_bytes or 0.0)}, written "
        f"{megabytes(most.hbm_written_bytes or 0.0)}{ideal}; L2 keeps small data; busy SMs: tensor cores "
        f"{most.tensor_active or 0.0:.0%}, warp slots {most.warps_active or 0.0:.0%}"
    ]


def _device_ranks(ranks: Sequence[RankProfile]) -> list[str]:
    lines = ["rank  on device  communicating  computing  both at once    idle  waiting  | back to back (us a call)"]
    lines += [
        f"{r.rank:4d}  {r.span_us:9.1f}  {r.communication_us:13.1f}  {r.computation_us:9.1f}  {r.both_us:12.1f}  "
        f"{r.idle_us:6.1f}  {r.waiting_us:7.1f}  | {r.iteration_us:12.1f}"
        for r in ranks[:_RANKS]
    ]
    return lines


def _host_ranks(profile: Profile) -> list[str]:
    lines = ["rank  back to back (us a call)  processor/wall  symmetric buffers used (own, others')"]
    for r in profile.ranks[:_RANKS]:
        share = f"{r.cpu_share:14.0%}" if r.cpu_share is not None else f"{'?':>14}"
        own = r.shared_bytes[r.rank] if r.rank < len(r.shared_bytes) else 0.0
        lines.append(
            f"{r.rank:4d}  {r.iteration_us:24.1f}  {share}  {megabytes(own)}, {megabytes(sum(r.shared_bytes) - own)}"
        )
    if profile.ideal_link_bytes != (0.0, 0.0):
        sent, received = profile.ideal_link_bytes
        lines.append(f"      to be sent at least {megabytes(sent)}, received {megabytes(received)} by the busiest rank")
    return lines


def _top(ranks: Sequence[RankProfile]) -> list[str]:
    slow = max(ranks, key=lambda rank: rank.iteration_us)
    lines = [
        f"rank {slow.rank}, the slowest: traced (us a call, each alone: may be longer than back to back), calls, name"
    ]
    return lines + [f"  {row.host_us:10.1f} {row.calls:6.1f}  {row.name[:90]}" for row in slow.top[:_HOST_ROWS]]


def _kernels(kernels: Sequence[KernelProfile]) -> list[str]:
    lines = ["us a call (mean, fastest rank)  calls  what"]
    for k in kernels[:_KERNELS]:
        lines.append(f"  {k.device_us:9.1f} {k.fastest_us:9.1f}  {k.calls:5.1f}  {_kernel(k)}")
        if k.code:
            lines.append(f"{'':31}{_code(k.code)}")
    if len(kernels) > _KERNELS:
        rest = kernels[_KERNELS:]
        lines.append(f"  {sum(k.device_us for k in rest):9.1f}  in {len(rest)} more")
    return lines


def _kernel(kernel: KernelProfile) -> str:
    parts = [short_name(kernel.name)]
    if kernel.copied_bytes:
        rate = kernel.copied_bytes * kernel.calls / kernel.device_us / 1e3 if kernel.device_us else 0.0
        parts.append(f"{megabytes(kernel.copied_bytes)} each, {rate:.0f} GB/s")
    if kernel.grid:
        shape = "x".join(map(str, _trim(kernel.grid))) + " blocks of " + "x".join(map(str, _trim(kernel.block)))
        parts.append(f"{shape}, {kernel.registers} registers, {kernel.shared_memory_bytes} B shared")
    if kernel.occupancy is not None:
        parts[-1] += f", {kernel.occupancy:.0%} of the warp slots"
    if kernel.streams:
        more = ", ..." if len(kernel.streams) > _STREAMS else ""
        parts.append(f"stream {', '.join(map(str, kernel.streams[:_STREAMS]))}{more}")
    return "; ".join(parts)


def _trim(numbers: tuple[int, ...]) -> tuple[int, ...]:
    while len(numbers) > 1 and numbers[-1] == 1:
        numbers = numbers[:-1]
    return numbers


def _code(code: KernelCode) -> str:
    facts = []
    for name, widths in (("loads", code.loads), ("stores", code.stores)):
        if widths:
            facts.append(f"{name} of " + "/".join(f"{width} B" for width in sorted(widths, reverse=True)))
    if code.bulk_copies:
        facts.append(f"{code.bulk_copies} TMA")
    if code.tensor:
        facts.append("tensor cores")
    if code.signals:
        facts.append("flags")
    if code.system_fences_in_loops:
        facts.append("MEMBAR.SYS in a loop")
    if code.spills:
        facts.append(f"{code.spills} spill instructions")
    return "code: " + ", ".join(facts) if facts else "code: no global memory"


def _counters(kernels: Sequence[KernelProfile]) -> list[str]:
    lines: list[str] = []
    for kernel in kernels:
        found = kernel.counters
        if not found:
            continue
        active = found.get("smsp__warps_active.avg", 0.0)
        stalls = {
            name.removeprefix("smsp__warps_issue_stalled_").removesuffix(".avg"): value / active
            for name, value in found.items()
            if name.startswith("smsp__warps_issue_stalled_") and active
        }
        lines.append(
            f"counters of {short_name(kernel.name)} (one launch, alone on its GPU, waiting included): "
            f"{found['gpu__time_duration.sum'] / 1e3:.1f} us; NVLink sent "
            f"{megabytes(found['nvltx__bytes_data_user.sum'])}, received "
            f"{megabytes(found['nvlrx__bytes_data_user.sum'])}; HBM read {megabytes(found['dram__bytes_read.sum'])}, "
            f"written {megabytes(found['dram__bytes_write.sum'])}"
        )
        busy = {name.split("__")[1].split(".")[0]: value for name, value in found.items() if name.endswith("_active")}
        lines.append(
            f"  of busy SMs' cycles: tensor cores {busy.get('pipe_tensor_cycles_active', 0.0):.0f}%, warp slots "
            f"{busy.get('warps_active', 0.0):.0f}%, issuing {busy.get('issue_active', 0.0):.0f}%; warps wait for: "
            + ", ".join(f"{_STALLS.get(name, name)} {share:.0%}" for name, share in _largest(stalls))
        )
    return lines


_STALLS = {
    "long_scoreboard": "global or remote memory", "membar": "fences", "barrier": "__syncthreads",
    "lg_throttle": "the load/store queue", "math_pipe_throttle": "arithmetic units",
}  # fmt: skip


def _largest(shares: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(shares.items(), key=lambda item: item[1], reverse=True)[:3]
