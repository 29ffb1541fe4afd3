"""Hardware counters of a rank's kernels, read in its own process by CUPTI's range profiler (`counters.cpp`).

One pass at a time and no replay, so that a kernel that waits for a peer runs once as always: what a set can hold is
what the hardware counts in one pass (asked of CUPTI 13.0 for GA100, GH100 and GB100).
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from harness import cache
from harness.platforms.cuda import cuda_home

_SOURCE = Path(__file__).with_suffix(".cpp")
_HEADER = "cupti_range_profiler.h"
_COMPILE_S = 60.0
_MAX_RANGES = 512

LINK = (
    "nvltx__bytes.sum", "nvlrx__bytes.sum", "nvltx__bytes_data_user.sum", "nvlrx__bytes_data_user.sum",
    "nvltx__bytes_packet_request.sum", "nvltx__bytes_packet_response.sum",
)  # fmt: skip
"""Requests carry what is written to peers, responses what peers have read."""
MEMORY = ("dram__bytes_read.sum", "dram__bytes_write.sum")
SM = (
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "smsp__issue_active.avg.pct_of_peak_sustained_active",
)
STALLS = (
    ("smsp__warps_issue_stalled_long_scoreboard.avg", "smsp__warps_issue_stalled_membar.avg", "smsp__warps_active.avg"),
    ("smsp__warps_issue_stalled_barrier.avg", "smsp__warps_issue_stalled_lg_throttle.avg",
     "smsp__warps_issue_stalled_math_pipe_throttle.avg"),
)  # fmt: skip
CALL_SETS = (LINK, MEMORY, SM)
KERNEL_SETS = (LINK, (*MEMORY, "gpu__time_duration.sum"), SM, *STALLS)


class CountersError(Exception):
    """They cannot be read here; the message says why."""


def library() -> Path:
    """The compiled reader. For the supervisor. Raises CountersError."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise CountersError("no C++ compiler for the reader of hardware counters")
    homes = [Path(cuda_home()), *sorted(Path("/usr/local").glob("cuda*"), reverse=True)]
    found = [home / below for home in homes for below in ("include", "extras/CUPTI/include")]
    includes = [folder for folder in found if folder.is_dir()]
    if not any((f / _HEADER).is_file() for f in includes):
        raise CountersError(f"the CUDA toolkit here has no {_HEADER}")

    def make(folder: Path) -> None:
        # CUPTI itself stays undefined: the rank has torch's loaded.
        command = [compiler, "-O1", "-std=c++17", "-shared", "-fPIC", *(f"-I{f}" for f in includes)]
        run = subprocess.run(
            [*command, str(_SOURCE), "-o", str(folder / "counters.so")],
            capture_output=True, text=True, timeout=_COMPILE_S, check=False,
        )  # fmt: skip
        if run.returncode:
            raise CountersError(f"the reader of hardware counters does not compile: {run.stderr.strip()[:200]}")

    name = cache.key(_SOURCE.read_bytes(), [str(f) for f in includes], cache.tool_identity(compiler))
    return cache.build("counters", name, make) / "counters.so"


class Counters:
    """In a rank, its device selected."""

    def __init__(self, path: Path, device: int) -> None:
        """Raises CountersError."""
        try:
            ctypes.CDLL("libcupti.so.13", mode=ctypes.RTLD_GLOBAL)
            self._library = ctypes.CDLL(str(path))
            driver = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise CountersError(str(error)) from None
        self._library.rs_counters_error.restype = ctypes.c_char_p
        self._context = ctypes.c_void_p()
        driver.cuCtxGetCurrent(ctypes.byref(self._context))
        self._device = device

    def read(
        self, names: Sequence[str], calls: Callable[[], None], align: Callable[[], None], *, by_kernel: bool
    ) -> list[dict[str, float]]:
        """Runs `calls`, which must drain the device, and says what `names` counted: of all as one, or (`by_kernel`) of
        each kernel, in the order of their launches; kernels then no longer run side by side. Opening a set takes each
        rank a third of a second: `align`, one kernel, lets them begin together. Raises CountersError."""
        array = (ctypes.c_char_p * len(names))(*(name.encode() for name in names))
        ranges = _MAX_RANGES if by_kernel else 1
        self._try(self._library.rs_counters_begin(self._device, self._context, array, len(names), by_kernel, ranges))
        align()
        self._try(self._library.rs_counters_push())
        calls()
        values = (ctypes.c_double * (ranges * len(names)))()
        found = self._try(self._library.rs_counters_end(values, ranges))
        rows = [dict(zip(names, values[i * len(names) : (i + 1) * len(names)], strict=True)) for i in range(found)]
        return rows[1:] if by_kernel else rows  # the first is `align`

    def _try(self, result: int) -> int:
        if result >= 0:
            return result
        said = str(self._library.rs_counters_error().decode(errors="replace"))
        if "PRIVILEGES" in said or "PERM" in said:
            said = f"the driver lets only administrators read hardware counters ({said})"
        raise CountersError(said)
