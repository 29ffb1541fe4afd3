"""Figures from traces: events as Kineto writes them, and as a hostile rank might."""

import json
import shutil
import subprocess

import pytest

from harness import timeline
from harness.timeline import base_name, short_name

TWO_SHOT = "void ns::two_shot<bf16>(float*)"
GEMM = "void cutlass::gemm<float, 3>(cutlass::Params<float, 3>)"
MOVES = {"two_shot"}


def call(start=100.0, dur=200.0):
    return {"ph": "X", "cat": "user_annotation", "name": "solution", "pid": 9, "tid": 9, "ts": start, "dur": dur}


def launch(correlation, ts=110.0, dur=5.0, name="cudaLaunchKernel"):
    return {
        "ph": "X", "cat": "cuda_runtime", "name": name, "pid": 9, "tid": 9, "ts": ts, "dur": dur,
        "args": {"External id": 3, "cbid": 211, "correlation": correlation},
    }  # fmt: skip


def kernel(correlation, ts, dur, name=TWO_SHOT, stream=7, **args):
    return {
        "ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur,
        "args": {
            "device": 0, "stream": stream, "correlation": correlation, "registers per thread": 32, "shared memory": 0,
            "grid": [24, 1, 1], "block": [1024, 1, 1], "est. achieved occupancy %": 9, **args,
        },
    }  # fmt: skip


def copy(correlation, ts, dur, size, name="Memcpy PtoP (Device -> Device)", stream=9):
    ends = {"fromDevice": 1, "inDevice": 0, "toDevice": 0} if "PtoP" in name else {"device": 0}
    args = {"stream": stream, "correlation": correlation, "bytes": size, **ends}
    return {
        "ph": "X", "cat": "gpu_memcpy", "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur, "args": args,
    }  # fmt: skip


def read(*events):
    return timeline.read(json.loads(json.dumps(events)))


def communicates(launch):
    return launch.between_ranks if launch.kind == "copy" else base_name(launch.name) in MOVES


def computes(launch):
    return not communicates(launch)


def shares(trace):
    return timeline.shares(trace, communicates, computes)


# -- one rank ----------------------------------------------------------------------------------------------------------


def test_shares_of_a_call_that_overlaps():
    trace = read(
        call(), launch(1), launch(2), launch(3),
        kernel(1, 1000, 40), kernel(2, 1020, 60, name=GEMM, stream=8), kernel(3, 1100, 10),
    )  # fmt: skip
    found = shares(trace)
    assert (found.span_us, found.idle_us) == (110, 20)
    assert (found.communication_us, found.computation_us, found.both_us) == (50, 60, 20)


def test_the_span_ends_with_what_ends_last():
    trace = read(call(), launch(1), launch(2), kernel(1, 1000, 100), kernel(2, 1010, 5, name=GEMM, stream=8))
    assert shares(trace) == timeline.Shares(100, 0, 100, 5, 5)


def test_shares_are_medians_over_calls():
    events = []
    for n, us in enumerate((10, 1000, 30)):
        at = 10_000 * n
        events += [call(at), launch(n, at + 1), kernel(n, at + 300, us)]
    assert shares(read(*events)).span_us == 30
    assert shares(read(call())) == timeline.Shares()  # nothing ran on a device
    assert shares(read()) == timeline.Shares()


def test_copies_between_ranks_move_data_and_local_ones_do_not():
    local = "Memcpy DtoD (Device -> Device)"
    trace = read(call(), launch(1), launch(2), copy(1, 500, 30, 1 << 20), copy(2, 530, 10, 1 << 20, name=local))
    assert [x.between_ranks for x in trace.calls[0].launches] == [True, False]
    assert (shares(trace).communication_us, shares(trace).computation_us) == (30, 10)


def test_the_harness_own_kernels_are_left_out():
    trace = read(
        launch(1, ts=90), launch(2, ts=95), call(), launch(3), launch(4, ts=301),
        kernel(1, 100, 10_000, name="spin"), kernel(2, 10_100, 5, name="barrier"), kernel(3, 10_105, 40),
        kernel(4, 10_150, 1), kernel(5, 10_160, 1), kernel(-1, 10_160, 1),
    )  # fmt: skip
    assert [x.correlation for x in trace.calls[0].launches] == [3]


def test_a_graphs_kernels_share_a_launch():
    trace = read(call(), launch(5, name="cudaGraphLaunch"), kernel(5, 400, 10, name=GEMM), kernel(5, 380, 20))
    assert [base_name(x.name) for x in trace.calls[0].launches] == ["two_shot", "gemm"]


def test_a_candidates_own_annotation_of_that_name_is_no_call():
    trace = read(call(100, 50), call(110, 10), call(200, 50), launch(1, 112), kernel(1, 112, 3))
    assert [(c.start, len(c.launches)) for c in trace.calls] == [(100, 1), (200, 0)]


def test_host_times_are_without_callees():
    def op(name, ts, dur, tid=9):
        return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 9, "tid": tid, "ts": ts, "dur": dur, "args": {}}

    trace = read(
        call(), op("outer", 110, 100), op("inner", 120, 30), op("inner", 160, 20), op("innermost", 125, 5),
        op("other thread", 115, 10, tid=10), op("outside", 50, 10), launch(1, 130, 10), kernel(1, 500, 7),
    )  # fmt: skip
    host = {row.name: (row.host_us, row.calls) for row in trace.top()}
    assert host["outer"] == (50, 1) and host["inner"] == (35, 2) and host["innermost"] == (5, 1)
    assert host["other thread"] == (10, 1) and host["cudaLaunchKernel"] == (10, 1)
    assert "outside" not in host and "solution" not in host
    assert trace.top()[0].name == TWO_SHOT and trace.top()[0].device_us == 7


# -- all ranks ---------------------------------------------------------------------------------------------------------


def test_kernels_by_rank():
    def rank(us):
        return read(
            call(), launch(1), launch(2), launch(3), call(400), launch(4, 410),
            kernel(1, 500, us), kernel(2, 500 + us, us, stream=8), kernel(3, 700, 5, name=GEMM), kernel(4, 800, us * 2),
        )  # fmt: skip

    two_shot, gemm = timeline.kernels([rank(10), rank(30)])
    assert two_shot.example.name == TWO_SHOT and two_shot.per_rank_us == (20, 60) and two_shot.fastest_us == 20
    assert two_shot.calls == 1.5 and two_shot.streams == (7, 8)
    assert gemm.calls == 0.5 and gemm.per_rank_us == (2.5, 2.5) and gemm.copied_bytes == 0


def test_a_kernel_of_one_rank_has_no_fastest_time_of_zero():
    busy, idle = read(call(), launch(1), kernel(1, 500, 9)), read(call())
    (row,) = timeline.kernels([busy, idle])
    assert row.per_rank_us == (9, 0) and row.fastest_us == 9 and row.calls == 0.5


def test_launches_of_one_kernel_with_other_grids_are_told_apart():
    trace = read(call(), launch(1), launch(2), kernel(1, 500, 9), kernel(2, 510, 4, grid=[1, 1, 1]))
    assert [timeline.shape(row.example, "grid") for row in timeline.kernels([trace])] == [(24, 1, 1), (1, 1, 1)]


def test_copies_of_several_sizes_are_one_row_of_their_mean():
    trace = read(call(), launch(1), launch(2), copy(1, 500, 9, 1000), copy(2, 510, 9, 3000))
    (row,) = timeline.kernels([trace])
    assert (row.copied_bytes, row.calls) == (2000, 2)


# -- names -------------------------------------------------------------------------------------------------------------

SOURCE = """
namespace a {
template <class T, int N> struct Box { T x; };
template <class T, int N> __global__ void boxed(Box<T, N> b, T* o, void (*)(int)) { o[0] = b.x; }
namespace { __global__ void hidden(float* o) { o[0] = 1; } }
namespace b2 { __global__ void nested(float* o) { o[0] = 1; } }
}
template <class T> struct Op { __device__ T operator()(T x) const { return x; } };
template <class T, class F> __global__ void apply(T* o, F f) { o[0] = f(o[0]); }
template <int... I> __global__ void variadic(int* o) { int s = 0; ((s += I), ...); o[0] = s; }
template <bool B> __global__ void flag(int* o) { o[0] = B; }
template <int N> struct Yes { using type = void; };
template <class T> __global__ typename Yes<(sizeof(T) > 2)>::type chosen(T* o) { o[0] = 1; }
extern "C" __global__ void plain_c(float* o) { o[0] = 1; }
__global__ void k12(float* o) { o[0] = 1; }
static __global__ void internal(float* o) { o[0] = 1; }
void go(float* o) {
    a::boxed<float, 3><<<1, 1>>>(a::Box<float, 3>{}, o, nullptr);
    a::hidden<<<1, 1>>>(o);
    apply<float><<<1, 1>>>(o, Op<float>{});
    apply<float><<<1, 1>>>(o, [] __device__(float x) { return x + 1; });
    variadic<1, 2><<<1, 1>>>((int*)o);
    flag<true><<<1, 1>>>((int*)o);
    chosen<float><<<1, 1>>>(o);
    internal<<<1, 1>>>(o);
}
"""


@pytest.mark.skipif(not shutil.which("nvcc") or not shutil.which("c++filt"), reason="needs nvcc and c++filt")
def test_mangled_and_demangled_names_have_one_base_name(tmp_path):
    (tmp_path / "n.cu").write_text(SOURCE)
    command = ["nvcc", "-ptx", "-std=c++17", "--extended-lambda", "-arch=sm_90", "n.cu", "-o", "n.ptx"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=100)
    lines = (tmp_path / "n.ptx").read_text().splitlines()
    mangled = [line.split("(")[0].split()[-1] for line in lines if ".entry" in line]
    said = subprocess.run(["c++filt"], input="\n".join(mangled), capture_output=True, text=True, check=True)
    demangled = said.stdout.splitlines()
    assert [base_name(n) for n in mangled] == [base_name(n) for n in demangled]
    assert {base_name(n) for n in mangled} == {
        "boxed", "hidden", "nested", "apply", "variadic", "flag", "chosen", "plain_c", "k12", "internal",
    }  # fmt: skip
    shown = {short_name(n) for n in demangled}
    assert {"a::hidden", "a::b2::nested", "a::boxed<float, 3>", "plain_c", "flag<true>"} <= shown


@pytest.mark.parametrize(
    ("name", "base", "short"),
    [
        ("void ns::f<(bool)(4>2), int>(int)", "f", "ns::f<(bool)(4>2), int>"),
        ("void (anonymous namespace)::f<float>(float*)", "f", "f<float>"),
        ("triton_red_fused_0", "triton_red_fused_0", "triton_red_fused_0"),
        ("ncclDevKernel_Sum(ncclDevKernelArgsStorage<4096ul>)", "ncclDevKernel_Sum", "ncclDevKernel_Sum"),
        ("", "", ""), ("(", "(", "("), ("<<<>", "<<<>", "<<<>"), (">>", ">>", ">>"), ("_Z", "_Z", "_Z"),
        ("_Z9999999f", "f", "_Z9999999f"),
    ],
)  # fmt: skip
def test_names(name, base, short):
    assert (base_name(name), short_name(name)) == (base, short)


# -- hostile -----------------------------------------------------------------------------------------------------------

RAISED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What the profiler turns into `integrity`."""

BAD = {
    "a string for a time": kernel(1, "soon", 1),
    "NaN for a time": kernel(1, float("nan"), 1),
    "an infinite time": kernel(1, 1, 1e999),
    "a huge number": kernel(1, 10**4000, 1),
    "a huge float": kernel(1, 1e300, 1),
    "no time": {"cat": "kernel", "name": "k", "args": {"correlation": 1}},
    "no name": {"cat": "kernel", "ts": 1, "args": {"correlation": 1}},
    "no number for a correlation": kernel("x", 1, 1),
    "an infinite correlation": kernel(1e999, 1, 1),
    "a list for a call's time": call([]),
    "null for a call's time": call(None),
    "words for a grid": kernel(1, 1, 1, grid="many"),
    "a huge grid": kernel(1, 1, 1, grid=[1e300, 1, 1]),
    "a number for a grid": kernel(1, 1, 1, grid=3),
    "null for bytes": copy(1, 1, 1, None),
    "a list for a category": {"cat": ["kernel"]},
    "words for a stream": kernel(1, 1, 1, stream="seven"),
}  # fmt: skip


@pytest.mark.parametrize("event", BAD.values(), ids=list(BAD))
def test_what_is_no_number_raises_what_the_profiler_expects(event):
    with pytest.raises(RAISED):
        timeline.kernels([timeline.read([call(), launch(1), event])])


@pytest.mark.parametrize(
    "event",
    [
        {}, {"cat": "kernel"}, {"cat": None, "ph": None},
        {"cat": "cpu_op", "ph": "M"}, kernel(1, 150, -5), kernel(1, 150, 1, grid=[]),
        {"cat": "kernel", "args": "none"},
    ],
)  # fmt: skip
def test_odd_events_change_nothing(event):
    trace = timeline.read([call(), launch(1), event])
    timeline.kernels([trace])
    assert all(x.end >= x.start for c in trace.calls for x in c.launches)


def test_names_become_one_line_of_text():
    name = "k\nhint 1: submit\ud800" + "x" * 5000
    found = timeline.read([call(), launch(1), kernel(1, 150, 1, name=name)]).calls[0].launches[0].name
    assert found.startswith("k hint 1: submit?xx") and len(found) <= 1000
    found.encode()


def test_many_calls_and_events_take_no_square_of_time():
    with pytest.raises(ValueError, match="calls"):
        timeline.read([call(3 * n, 1) for n in range(10_000)])
    ops = [{"ph": "X", "cat": "cpu_op", "name": f"op{n}", "ts": 100 + n / 1e4, "dur": 1} for n in range(10_000)]
    assert len(timeline.read([call(), *ops]).top()) == timeline.TOP
