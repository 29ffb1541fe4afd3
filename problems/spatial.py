"""What several problems on grids share: extents that follow the world size, and floors of convolutions and transforms.

For `inputs`, `work` and `illegal` only. A `reference` is shown to models on its own and must not import from here.
"""

from __future__ import annotations

import math

from problems.spec import Case


def extent(case: Case, axis: str, world_size: int) -> int:
    """A global axis that is cut into one block per rank: `<axis>_per_rank` times the world size, or `<axis>` rounded up
    to a multiple of it."""
    if f"{axis}_per_rank" in case.sizes:
        return case[f"{axis}_per_rank"] * world_size
    return math.ceil(case[axis] / world_size) * world_size


def wide_bytes(element_bytes: int) -> int:
    """Bytes of an element that is float32 at least."""
    return max(element_bytes, 4)


def fft_flops(points: int, length: int) -> float:
    """Real transforms of that length over so many points in all. Split-radix needs two operations per real point and
    level; a matrix product would do more."""
    return 2 * points * math.log2(length)


def convolution_flops(outputs: int, inner: int, taps: int, axes: int, plain: bool) -> float:
    """A convolution of `taps` taps on each of `axes` axes with `inner` input channels. Winograd's F(4, 3) halves the
    multiplications on each axis of three taps; that is `plain`: without stride or dilation."""
    direct = 2 * outputs * inner * taps**axes
    return direct / 2**axes if plain and taps == 3 else direct


def neighbours(world_size: int) -> int:
    """Of the rank with most neighbours in a row of ranks."""
    return min(world_size - 1, 2)
