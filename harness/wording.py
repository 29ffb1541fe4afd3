"""Ratios, times and what others have written as persons and models read them. Imports no torch."""

from __future__ import annotations

import math

from harness.types import Measurement, Protocol, Ratio


def ratio_text(ratio: Ratio) -> str:
    """`1.70x [1.65, 1.75]`: the ratio and its 95% interval, if it has one."""
    return f"{figure(ratio.value)}x {interval(ratio)}".rstrip()


def interval(ratio: Ratio, decimals: int = 2) -> str:
    """`[1.65, 1.75]`; "" where there is none, as by the pkb protocol."""
    if ratio.low == ratio.high:
        return ""
    return f"[{figure(ratio.low, decimals)}, {figure(ratio.high, decimals)}]"


def figure(value: float, decimals: int = 2) -> str:
    """`1.70`; below 0.01 at least two significant digits: `0.00048`."""
    if 0 < value < 0.01:
        decimals = max(decimals, 1 - math.floor(math.log10(value)))
    return f"{value:.{decimals}f}"


def time_text(us: float, protocol: Protocol) -> str:
    """`13.0 us`, the median of samples; `mean 13.0 us` by the pkb protocol, which may lie outside of p10 to p90."""
    return f"mean {us:.1f} us" if protocol == "pkb" else f"{us:.1f} us"


def graphs_text(measured: Measurement) -> str:
    """What is in the device figure where each of the candidate's calls had a CUDA graph of its own; "" elsewhere."""
    if measured.device is None or measured.device.candidate.host_us is None:
        return ""
    return (
        "calls return the same memory again, so each was a CUDA graph of its own, which costs one or two microseconds "
        "a call; with a fresh output in each call they are one graph"
    )


def plain(text: str) -> str:
    """The text without control characters, newlines apart: an escape sequence could forge a verdict."""
    return "".join(char if char.isprintable() or char == "\n" else " " if char == "\t" else "�" for char in text)


def one_line(value: object, width: int = 100) -> str:
    """The first words of a text, or of what an untrusted process said, as one line of at most `width` characters."""
    flat = " ".join(plain(str(value).lstrip()[: 4 * width]).split())
    return flat if len(flat) <= width else flat[: width - 3] + "..."
