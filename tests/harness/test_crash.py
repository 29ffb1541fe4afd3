"""What cuda-gdb 13.0 printed of core dumps on H200, and what is said of it."""

import pytest

from harness import crash
from harness.types import RankReport, Stage

SOURCE = "\n" * 22 + "        rs_round(out[i + ((int64_t)1 << 40)], sum);\n"
IN_A_HEADER = """\
Opening GPU coredump: /dev/shm/ringsmith-561-e5daf0/candidate-4/out/core.18
[Current focus set to CUDA kernel 0, grid 20, block (8,0,0), thread (0,0,0), device 0, sm 0, warp 0, lane 0]

CUDA Exception: Warp Illegal Address
The exception was triggered at PC 0x7f0b4e1582b0  void allreduce_kernel<rs_bf16>(rs_bf16 const*, rs_bf16*, rs_bf16* \
const*, unsigned int* const*, long, int, int)  (ringsmith.h:134 in _Z8rs_roundR7rs_bf16f inlined from candidate.py:23)
#0  0x00007f0b4e158130 in allreduce_kernel<rs_bf16><<<(64,1,1),(256,1,1)>>> () at ringsmith.h:126 in _Z9rs_to_sum
""".replace("\\\n", "")
IN_THE_CANDIDATE = """\
CUDA Exception: Warp Misaligned Address
The exception was triggered at PC 0x7fab377a0fb0  bad_kernel(float*, int)  (candidate.py:43 in _Z5touchPfi inlined \
from candidate.py:47)
""".replace("\\\n", "")
TRAP = """\
[Current focus set to CUDA kernel 0, grid 20, block (8,0,0), thread (64,0,0), device 1, sm 0, warp 1, lane 0]
Program terminated with signal SIGTRAP, Trace/breakpoint trap.
#0  allreduce_kernel<rs_bf16><<<(64,1,1),(256,1,1)>>> () at /include/ringsmith.h:74 in _Z16rs_barrier_blockPKPjiii \
inlined from candidate.py:20
74\t    uint32_t* own = signals[rank] + RS_SLOT_WORDS * slot;
""".replace("\\\n", "")


def test_the_candidates_line_of_a_crash_in_a_header():
    found = crash.read(IN_A_HEADER)
    assert (found.kernel, found.file, found.line, found.caller_line) == (
        "allreduce_kernel<rs_bf16>", "ringsmith.h", 134, 23,
    )  # fmt: skip
    (said,) = crash.findings([found, found], dumps=2, world_size=4, source=SOURCE)
    assert "allreduce_kernel<rs_bf16> used an address that is not mapped at line 23: `rs_round(out[i + " in said.text
    assert "ringsmith.h, line 134" in said.text and "block (8,0,0), thread (0,0,0)" in said.text
    assert said.certain and "2 of 4 ranks" in said.evidence


def test_a_crash_in_the_candidates_own_function():
    found = crash.read(IN_THE_CANDIDATE)
    assert (found.kernel, found.file, found.line) == ("bad_kernel", "candidate.py", 43)
    (said,) = crash.findings([found], dumps=1, world_size=2, source="short")
    assert "no multiple of the access's size at line 43" in said.text


def test_a_trap_names_the_kernel_and_only_some_threads_line():
    found = crash.read(TRAP)
    assert (found.what, found.kernel, found.caller_line, found.exact) == (
        "SIGTRAP", "allreduce_kernel<rs_bf16>", 20, False,
    )  # fmt: skip
    (said,) = crash.findings([found], dumps=1, world_size=2, source=SOURCE)
    assert "trapped" in said.text and "while a thread was at line 20" in said.text


@pytest.mark.parametrize("text", ["", "Opening GPU coredump: x", "CUDA Exception: Warp Illegal Address\n"])
def test_nothing_is_made_of_less(text):
    assert crash.read(text) is None


@pytest.mark.parametrize(
    ("message", "theirs"),
    [
        ("AcceleratorError: CUDA error: an illegal memory access was encountered", True),
        ("AcceleratorError: CUDA error: misaligned address", True),
        ("RuntimeError: CUDA error: invalid argument", False),
        ("ValueError: no", False),
    ],
)
def test_which_errors_a_kernel_made(message, theirs):
    report = RankReport(rank=0, ok=False, stage=Stage.correctness, message=message)
    assert crash.from_device((report,), "rank 0: x") is theirs
