"""A profile as a model reads it: a screen, with every hint and note."""

from harness.counters import KERNEL_SETS
from harness.profile_types import CallProfile, Hint, KernelCode, KernelProfile, LinkTraffic, Profile, RankProfile
from harness.types import Latency, Measurement, Ratio, Timing
from tools import catalogue
from tools.profile_text import profile_text

HINTS = tuple(
    Hint(text=f"hint text {n}: " + "words and " * 16, evidence=f"evidence {n}: " + "figures and " * 10, gain_us=10 - n)
    for n in range(3)
)
NOTES = ("NVML does not count bytes over NVLink here", "no hardware counters: " + "reasons " * 10)
CODE = KernelCode(
    name="k", loads={16: 3, 4: 2, 1: 1}, stores={16: 2, 8: 1}, spills=12, system_fences=2, system_fences_in_loops=1,
    signals=4, bulk_copies=2, tensor=9,
)  # fmt: skip


def kernel(n):
    counters = {name: 40.0 for names in KERNEL_SETS for name in names} if n == 0 else {}
    return KernelProfile(
        name=f"void ns{n}::reduce_scatter_then_all_gather_of_everything<__nv_bfloat16, 8, true>(float*)",
        calls=3, device_us=12345.6, fastest_us=10000.1, communicates=True, grid=(132, 2, 1), block=(1024, 1, 1),
        registers=255, shared_memory_bytes=232448, streams=tuple(range(7, 40)), occupancy=0.25, code=CODE,
        counters=counters,
    )  # fmt: skip


def rank(n):
    top = tuple(CallProfile(name=f"kernel<{i}>" * 40, device_us=10, host_us=1, calls=2) for i in range(12))
    return RankProfile(
        rank=n, iteration_us=123456.7, top=top, span_us=123456.7, idle_us=1, communication_us=100, computation_us=50,
        both_us=30, waiting_us=20, hbm_read_bytes=1e9, hbm_written_bytes=2e9, tensor_active=0.5, warps_active=0.4,
        link=LinkTraffic(sent_bytes=1e9 * (n + 1), received_bytes=1e9, wire_bytes=2e9, pushed=0.5),
    )  # fmt: skip


def full(**changes):
    facts = {
        "ranks": tuple(rank(n) for n in range(8)), "kernels": tuple(kernel(n) for n in range(40)),
        "trace": "/somewhere/t.json",
        "mechanisms": ("NCCL", "copy engine", "TMA"), "hints": HINTS, "notes": NOTES, "ideal_link_bytes": (1e9, 1e9),
        "limits_us": {"FLOPs": 1.0, "HBM": 20.0, "link in": 40.0, "link out": 40.0}, "ideal_hbm_bytes": 1e8,
    }  # fmt: skip
    return Profile(candidate="c", dtype="bfloat16", iterations=5, **(facts | changes))


def check(text):
    lines = text.splitlines()
    assert len(lines) <= 60, len(lines)
    assert max(map(len, lines)) <= 190, max(lines, key=len)
    for hint in HINTS:
        assert hint.text in text and hint.evidence in text
    for note in NOTES:
        assert note in text


def test_a_full_profile_is_a_screen():
    text = profile_text(full())
    check(text)
    assert "moved by: NCCL, copy engine, TMA; 50% pushed, 50% pulled" in text
    assert "bound by link in" in text and "in 32 more" in text and "rank 7: sent 8000.00 MB" in text
    assert "ns0::reduce_scatter" in text and "25% of the warp slots" in text and "stream 7, 8, 9, 10, ...\n" in text
    assert "code: loads of 16 B/4 B/1 B, stores of 16 B/8 B, 2 TMA, tensor cores, flags, MEMBAR.SYS in a loop" in text
    assert "/somewhere" not in text and "which is 0% of the time here" in text


def test_a_measurement_without_an_interval_is_shown_as_a_mean():
    one = Latency(median_us=26.04, p10_us=6.8, p90_us=7.9, min_us=6, samples=100, skew_us=0.5)
    timing = Timing(candidate=one, reference=one, speedup=Ratio(value=1, low=1, high=1))
    lines = profile_text(full(), Measurement(protocol="pkb", eager=timing)).splitlines()
    assert lines[1] == "eager: mean 26.0 us (p10 6.8, p90 7.9), reference mean 26.0 us: 1.00x; ranks 0.5 us apart"


def test_a_cpu_profile_is_a_screen():
    ranks = tuple(
        RankProfile(rank=n, iteration_us=100.0, top=rank(n).top, cpu_share=0.9, shared_bytes=(4096.0,) * 8)
        for n in range(8)
    )
    text = profile_text(full(ranks=ranks, kernels=(), mechanisms=("shared memory",)))
    check(text)
    assert "moved by: shared memory" in text
    assert "\nrank  back to back (us a call)  processor/wall  symmetric buffers used (own, others')\n" in text
    assert "\n   0                     100.0             90%  4.1 kB, 28.7 kB\n" in text
    assert "which is 40% of the time back to back here" in text
    assert (
        "\nrank 0, the slowest: traced (us a call, each alone: may be longer than back to back), calls, name\n" in text
    )


def test_little_is_known_of_an_empty_profile():
    text = profile_text(full(ranks=(RankProfile(rank=0, iteration_us=5, top=()),), kernels=(), mechanisms=(), hints=(),
                             notes=(), limits_us={}, ideal_link_bytes=(0.0, 0.0)))  # fmt: skip
    assert "moved by: nothing between ranks" in text and "nan" not in text


def test_a_barrier_has_flags_and_no_data():
    barrier = kernel(1).model_copy(update={"code": KernelCode(name="b", signals=2, system_fences=1)})
    assert "code: flags" in profile_text(full(kernels=(barrier,)))
    nothing = kernel(1).model_copy(update={"code": KernelCode(name="b")})
    assert "code: no global memory" in profile_text(full(kernels=(nothing,)))


def test_the_tool_passes_on_the_kernel_and_hides_the_folder(session, sandbox):
    catalogue.call(session, "write_candidate", '{"source": "def solution(x):\\n    return x\\n"}')
    sandbox.answers = [(full(trace=str(session.traces_dir / "t.json")), 1.5)]
    result = catalogue.call(session, "profile", '{"kernel": "reduce"}')
    assert result.ok and result.device_s == 1.5 and sandbox.asked[-1][1:] == (session.traces_dir, "reduce")
    assert result.data["profile"]["trace"] == "traces/t.json" and str(session.traces_dir) not in result.text
