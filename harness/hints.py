"""From a profile's figures to what the next edit should consider: at most three hints, each with its evidence."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean

from harness import timeline
from harness.profile_types import Hint, KernelProfile, Profile, RankProfile

MOST = 3
_OWN_ANYWAY = 1.15
"""Bytes over the ideal that headers, flags and rounding to packets may cost."""
_SMALL_COPY_BYTES = 1 << 20
_FEW_BLOCKS = 16
_LEAST_SHARE = 0.08
"""Of a call's time: what would save less is not worth a hint."""


def hints(profile: Profile) -> tuple[Hint, ...]:
    """Best first."""
    ranks = profile.ranks
    call_us = max((r.span_us or r.iteration_us for r in ranks), default=0.0)
    found = [hint for rule in _RULES for hint in rule(profile) if hint.gain_us >= _LEAST_SHARE * call_us]
    found.sort(key=lambda hint: hint.gain_us, reverse=True)
    return tuple(found[:MOST])


def _on_device(profile: Profile) -> bool:
    return any(rank.span_us for rank in profile.ranks)


def _slowest(profile: Profile) -> RankProfile:
    return max(profile.ranks, key=lambda rank: rank.span_us or rank.iteration_us)


def _least_us(profile: Profile) -> float:
    return max(profile.limits_us.values(), default=0.0)


def _link_us(profile: Profile) -> float:
    return max(profile.limits_us.get("link in", 0.0), profile.limits_us.get("link out", 0.0))


def _host_bound(profile: Profile) -> Iterator[Hint]:
    rank = _slowest(profile)
    late, launches = rank.iteration_us - rank.span_us, sum(k.calls for k in profile.kernels)
    if rank.span_us and late > 0.3 * rank.iteration_us:
        yield Hint(
            text="called from Python the device waits for the host: fewer launches and less Python for each call (one "
            "fused kernel; prepare pointers and workspaces once, not in every call); only the eager figure gains",
            evidence=f"rank {rank.rank}: {rank.iteration_us:.0f} us for a call of many back to back, "
            f"{rank.span_us:.0f} us on the device, {launches:.0f} launches",
            # The device figure, which is worth more, gains nothing.
            gain_us=min(late, rank.span_us) / 2,
        )


def _gaps(profile: Profile) -> Iterator[Hint]:
    rank = _slowest(profile)
    if rank.idle_us > 0.15 * rank.span_us:
        yield Hint(
            text="the device idles between kernels although the host is ahead: fuse them, or fork and join streams at "
            "fewer places",
            evidence=f"rank {rank.rank}: {rank.idle_us:.0f} of {rank.span_us:.0f} us without any kernel",
            gain_us=rank.idle_us,
        )


def _too_many_bytes(profile: Profile) -> Iterator[Hint]:
    links = [rank.link for rank in profile.ranks if rank.link]
    ideal = max(profile.ideal_link_bytes)
    if not links or ideal < 4096:
        return
    moved = max(max(link.sent_bytes, link.received_bytes) for link in links)
    if moved > _OWN_ANYWAY * ideal:
        times = moved / ideal
        yield Hint(
            text=f"{times:.1f} times the bytes that must cross the links do: send each part once, to the rank that "
            "needs it (reduce-scatter and all-gather instead of everybody reading everything), in the input's dtype",
            # Where the data decides who needs what, the floor counts only what no draw can do without.
            evidence=f"{megabytes(moved)} a rank and call, {megabytes(ideal)} are needed, more only if the data say so",
            gain_us=_link_us(profile) * (times - 1),
        )


def _no_overlap(profile: Profile) -> Iterator[Hint]:
    rank = _slowest(profile)
    computing = sum(k.device_us for k in profile.kernels if k.computes and not k.copied_bytes)
    shorter = min(rank.communication_us, rank.computation_us, computing)
    if shorter > 0 and rank.both_us < 0.5 * shorter:
        yield Hint(
            text="communication and computation run one after the other: split the work into chunks and move one while "
            "the next is computed, on another stream or by other blocks of one kernel (page overlap)",
            evidence=f"rank {rank.rank}: {rank.communication_us:.0f} us communicating, {rank.computation_us:.0f} us "
            f"computing, {rank.both_us:.0f} us both at once",
            gain_us=shorter - rank.both_us,
        )


def _waiting(profile: Profile) -> Iterator[Hint]:
    if len(profile.ranks) < 2 or not _on_device(profile):
        return
    most = max(profile.ranks, key=lambda rank: rank.waiting_us)
    last = min(profile.ranks, key=lambda rank: rank.waiting_us)
    if most.waiting_us - last.waiting_us > 0.15 * most.span_us:
        yield Hint(
            text=f"rank {last.rank} comes last and the others wait for it: give all ranks the same work, and none a "
            "part that the others need first",
            evidence=f"the same kernels take rank {most.rank} {most.waiting_us:.0f} us longer than the fastest rank, "
            f"rank {last.rank} {last.waiting_us:.0f} us",
            gain_us=most.waiting_us - last.waiting_us,
        )


def _few_blocks(profile: Profile) -> Iterator[Hint]:
    for kernel in _communicating(profile):
        blocks = _product(kernel.grid)
        wasted = kernel.fastest_us - _link_us(profile)
        if 0 < blocks < _FEW_BLOCKS and max(profile.ideal_link_bytes) > 1 << 18 and not _uses_tma(kernel):
            yield Hint(
                text=f"{short_name(kernel.name)} has too few blocks to fill the links: 24 to 64 of 512 threads "
                "with 16-byte accesses do, or TMA with fewer",
                evidence=f"{blocks} blocks of {_product(kernel.block)} threads, {kernel.fastest_us:.0f} us where the "
                f"links need {_link_us(profile):.0f}",
                gain_us=wasted / 2,
            )


def _narrow(profile: Profile) -> Iterator[Hint]:
    for kernel in profile.kernels:
        code = kernel.code
        if code is None or code.bulk_copies:
            continue
        narrow = sum(n for width, n in [*code.loads.items(), *code.stores.items()] if width < 16)
        wide = sum(n for width, n in [*code.loads.items(), *code.stores.items()] if width >= 16)
        if narrow >= 2 and not wide:  # tails of wide accesses are many narrow ones
            yield Hint(
                text=f"{short_name(kernel.name)} moves a few bytes with each instruction: let a thread load and "
                "store 16 (uint4, rs_ld16_part), which needs aligned addresses and a tail by itself",
                evidence=f"machine code: {narrow} loads and stores of global memory, none of 16 bytes",
                gain_us=0.4 * max(0.0, kernel.fastest_us - _least_us(profile)),
            )


def _fences(profile: Profile) -> Iterator[Hint]:
    for kernel in profile.kernels:
        code = kernel.code
        if code is not None and code.system_fences_in_loops:
            yield Hint(
                text=f"{short_name(kernel.name)} waits for its writes in each pass of a loop: where a pass moves less "
                "than tens of KiB, one system fence or release for a larger part, or after the loop",
                evidence=f"machine code: MEMBAR.SYS inside a loop ({code.system_fences_in_loops} of "
                f"{code.system_fences})",
                gain_us=0.3 * max(0.0, kernel.fastest_us - _link_us(profile)),
            )


def _spills(profile: Profile) -> Iterator[Hint]:
    for kernel in profile.kernels:
        if kernel.code is not None and kernel.code.spills > 4:
            yield Hint(
                text=f"{short_name(kernel.name)} keeps values in local memory: fewer live values, smaller tiles, or "
                "arrays indexed by constants only (#pragma unroll)",
                evidence=f"machine code: {kernel.code.spills} loads and stores of local memory, {kernel.registers} "
                "registers",
                gain_us=0.2 * kernel.fastest_us,
            )


def _small_copies(profile: Profile) -> Iterator[Hint]:
    copies = [k for k in profile.kernels if k.copied_bytes and k.communicates]
    small = [k for k in copies if k.copied_bytes < _SMALL_COPY_BYTES]
    if small:
        total, calls = sum(k.device_us for k in small), sum(k.calls for k in small)
        bytes_ = sum(k.copied_bytes * k.calls for k in small)
        yield Hint(
            text="copies between ranks are small: a copy engine starts each in microseconds and reaches its rate from "
            "some MiB; one kernel with loads and stores is faster here",
            evidence=f"{calls:.0f} copies a call of {megabytes(bytes_ / max(1.0, calls))} each, {total:.0f} us",
            gain_us=max(0.0, total - _link_us(profile)),
        )


def _no_tensor_cores(profile: Profile) -> Iterator[Hint]:
    needed = profile.limits_us.get("FLOPs", 0.0)
    rank = _slowest(profile)
    if profile.dtype not in ("bfloat16", "float16"):  # others need not use them
        return
    if rank.tensor_active is None or needed < 0.2 * _least_us(profile):
        return
    if rank.tensor_active < 0.02 and rank.computation_us + rank.communication_us > 2 * needed:
        yield Hint(
            text="the tensor cores idle although this problem is matrix products: use cuBLAS (torch.matmul), Triton's "
            "tl.dot or wgmma/mma instructions",
            evidence=f"tensor cores active {rank.tensor_active:.1%} of the SMs' busy cycles; the products alone need "
            f"{needed:.0f} us at full rate",
            gain_us=max(0.0, rank.span_us - 2 * needed),
        )


def _staging(profile: Profile) -> Iterator[Hint]:
    known = [r for r in profile.ranks if r.hbm_read_bytes is not None and r.hbm_written_bytes is not None]
    if not known or profile.ideal_hbm_bytes < 1 << 20:
        return
    moved = max((r.hbm_read_bytes or 0.0) + (r.hbm_written_bytes or 0.0) for r in known)
    times = moved / profile.ideal_hbm_bytes
    # Matrix products read their operands again and again, and are not bound by that.
    if times > 1.5 and profile.limits_us.get("FLOPs", 0.0) < profile.limits_us.get("HBM", 0.0) * times:
        yield Hint(
            text=f"local memory is read and written {times:.1f} times as much as needed: do without staging copies "
            "(read peers' buffers directly, write results where they belong) and fuse elementwise passes",
            evidence=f"{megabytes(moved)} of HBM traffic a rank and call, {megabytes(profile.ideal_hbm_bytes)} "
            "are needed",
            gain_us=profile.limits_us.get("HBM", 0.0) * (times - 1),
        )


def _only_nccl(profile: Profile) -> Iterator[Hint]:
    if "NCCL" in profile.mechanisms:
        theirs = [k for k in profile.kernels if k.name.startswith("nccl")]
        total = sum(k.fastest_us for k in theirs)
        yield Hint(
            text="NCCL moves the data, as in the reference: own kernels on peer pointers, or copy engines beside the "
            "computation, are what can be faster (page mechanisms)",
            evidence=f"{', '.join(short_name(k.name) for k in theirs[:2])}: {total:.0f} us, the links need "
            f"{_link_us(profile):.0f} us",
            gain_us=max(0.0, total - _link_us(profile)),
        )


def _only_gloo(profile: Profile) -> Iterator[Hint]:
    if "gloo" in profile.mechanisms and "shared memory" not in profile.mechanisms:
        rank = _slowest(profile)
        total = sum(row.host_us for row in rank.top if row.name.startswith("gloo:"))
        yield Hint(
            text="gloo moves the data, as in the reference: own code on symmetric buffers (kit.symmetric), which all "
            "ranks have mapped, does without its copies through sockets",
            evidence=f"rank {rank.rank}: {total:.0f} us a call in gloo's collectives",
            gain_us=total,
        )


def _near_the_limit(profile: Profile) -> Iterator[Hint]:
    rank, least = _slowest(profile), _least_us(profile)
    if least and rank.span_us and least > 0.75 * rank.span_us:
        bound = max(profile.limits_us, key=lambda name: profile.limits_us[name])
        yield Hint(
            text=f"little is left: {bound} bounds it, and other ways of doing the same will not help",
            evidence=f"{rank.span_us:.0f} us on the device, {least:.0f} us is what the work needs at full rate",
            gain_us=rank.span_us,
        )


def _idle_cpu(profile: Profile) -> Iterator[Hint]:
    """On cpu, ranks share cores."""
    shares = [rank.cpu_share for rank in profile.ranks if rank.cpu_share is not None]
    if shares and mean(shares) < 0.6:
        wait = max(rank.iteration_us * (1 - (rank.cpu_share or 0.0)) for rank in profile.ranks)
        yield Hint(
            text="ranks sleep or wait for a core for much of the call: fewer barriers, and equal parts for all ranks",
            evidence=f"processor time is {mean(shares):.0%} of wall time",
            gain_us=wait / 2,
        )


def _too_much_shared(profile: Profile) -> Iterator[Hint]:
    used = [sum(rank.shared_bytes) for rank in profile.ranks if rank.shared_bytes]
    ideal = sum(profile.ideal_link_bytes)
    if used and ideal > 1 << 16 and max(used) > 2.5 * ideal:
        times = max(used) / ideal
        yield Hint(
            text="each rank goes through far more shared memory than has to change hands: let every rank work on its "
            "part and read only what it needs of the others'",
            evidence=f"{megabytes(max(used))} of symmetric buffers used a rank and call; {megabytes(ideal)} have "
            "to be sent and received",
            gain_us=max(rank.iteration_us for rank in profile.ranks) * (1 - 1 / times) / 2,
        )


_RULES = (
    _near_the_limit, _host_bound, _gaps, _too_many_bytes, _no_overlap, _waiting, _few_blocks, _narrow, _fences, _spills,
    _small_copies, _no_tensor_cores, _staging, _only_nccl, _only_gloo, _idle_cpu, _too_much_shared,
)  # fmt: skip


def _communicating(profile: Profile) -> list[KernelProfile]:
    return [k for k in profile.kernels if k.communicates and not k.copied_bytes and not k.name.startswith("nccl")]


def _uses_tma(kernel: KernelProfile) -> bool:
    return kernel.code is not None and kernel.code.bulk_copies > 0


def _product(numbers: tuple[int, ...]) -> int:
    total = 1 if numbers else 0
    for number in numbers:
        total *= number
    return total


def short_name(name: str) -> str:
    """A kernel's name without parameters, cut to fit a line."""
    name = timeline.short_name(name) if not name.startswith(("Memcpy", "Memset")) else name
    return name if len(name) <= 48 else name[:45] + "..."


def megabytes(size: float) -> str:
    """With its unit: megabytes, or kilobytes below a tenth of one."""
    return f"{size / 1e6:.2f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"
